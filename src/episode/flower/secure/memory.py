"""What a site remembers between the messages of secure runs: what it answered, and its states.

**Answers.** A site that gave the same values to two cohorts would be seen in the difference of the
two sums. So it remembers, for each question and for each answer, which cohort it was for. A
question is (seed, round, step, repeat), and is not answered for a second cohort; for that, the
server must ask for fresh batches (another repeat). If these give the same values again, up to
rounding, because the site has no more than one batch of examples, it does not answer either.

**States.** The server keeps no copy of memories and momenta, which are raw gradients of a site. The
site keeps its state after the last round that it was part of, and the one before, by tag: the
server names the one to go on from. In a folder they outlive the SuperNode and the run.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from episode.errors import EpisodeError
from episode.federation.checkpoint import write_tensors
from episode.files import read_regular
from episode.flower.messages import Ask, pack, unpack
from episode.flower.secure.fixed_point import Words
from episode.flower.secure.keys import RefusedError
from episode.flower.secure.messages import SECURE, MaskedAsk
from episode.flower.secure.sketches import Sketches

_STATE = SECURE + ".state."
_POINT = SECURE + ".point"
_ANSWERED = "answered"
_SKETCHES = "sketches"
_ENTRY = 16
"""Bytes of an entry: a hash of a question or of values, and one of the cohort."""


class AnsweredError(RefusedError):
    """The site has answered this for another cohort; it can answer with fresh batches."""


@dataclass
class Memory:
    """The memory of a site, open for one message."""

    context: Context
    path: Path | None
    answered: dict[bytes, bytes] = field(default_factory=dict)
    """Cohorts, by question and by values."""
    sketches: Sketches = field(default_factory=Sketches)
    """What the last answers looked like."""
    states: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    """States by tag."""

    @classmethod
    def open(cls, context: Context, folder: Path | None, client: int, dtype: torch.dtype) -> Memory:
        """Read a site's memory: from its folder, or from what its SuperNode holds."""
        path = None if folder is None else folder / f"site-{client}.safetensors"
        memory = cls(context, path)
        if path is None:
            record = memory._record()
            memory._read_answered(bytes(record.get(_ANSWERED, b"")))  # type: ignore[arg-type]
            memory.sketches = Sketches.read(bytes(record.get(_SKETCHES, b"")))  # type: ignore[arg-type]
            for name, arrays in context.state.array_records.items():
                if name.startswith(_STATE):
                    memory.states[name.removeprefix(_STATE)] = unpack(arrays, dtype)
        elif path.exists():
            memory._read_file(path)
        return memory

    def check(self, masked: MaskedAsk, ask: Ask) -> None:
        """Refuse to answer twice, out of order, or for another cohort.

        Raises:
            RefusedError: The message is old, or of an old round.
            AnsweredError: The question was answered for another cohort.
        """
        held = self._record()
        if held.get("session") == masked.session:
            number, last = int(held["number"]), int(held["round"])  # type: ignore[arg-type]
            if masked.number <= number:
                raise RefusedError(
                    f"Exchange {masked.number} is not after the last one, {number}: this site "
                    "answers each once, and in order."
                )
            if ask.round < last:
                raise RefusedError(
                    f"Round {ask.round} was asked for after round {last}: this site does not go "
                    "back."
                )
        self._refuse_other_cohort(masked.question(ask), masked, ask)

    def note(self, words: Words, masked: MaskedAsk, ask: Ask, sketch: Tensor | None) -> None:
        """Remember an answer before it is sent; refuse one that another cohort has had.

        Args:
            words: The values, not yet masked.
            masked: The sum that they are for.
            ask: What was asked.
            sketch: What the values look like; None if they do not depend on batches.

        Raises:
            AnsweredError: The same values were sent for another cohort.
        """
        # Equal values have equal sketches, which are shorter.
        content = words.tobytes() if sketch is None else sketch.numpy().tobytes()
        values = hashlib.sha256(masked.kind.encode() + content).digest()[:8]
        self._refuse_other_cohort(values, masked, ask)
        about = masked.subject(ask), masked.members
        if sketch is not None:
            if self.sketches.other_cohort_has(*about, sketch):
                raise _answered_before(masked, ask)
            self.sketches.add(*about, sketch)
        self.answered[values] = self.answered[masked.question(ask)] = masked.members
        self._update(session=masked.session, number=masked.number, round=ask.round)

    def _refuse_other_cohort(self, name: bytes, masked: MaskedAsk, ask: Ask) -> None:
        if self.answered.get(name, masked.members) != masked.members:
            raise _answered_before(masked, ask)

    def hold_key(self, private: bytes, public: bytes) -> None:
        """Keep the private key for the next exchange, in place of any other."""
        self._update(private=private, public=public)

    def take_key(self, public: bytes) -> bytes | None:
        """Return the private key of a public one and forget it; None if it is not here."""
        record = self._record()
        if record.get("public") != public:
            return None
        private = record.pop("private")
        del record["public"]
        assert isinstance(private, bytes)
        return private

    def hold_point(self, tag: str, anchor: Tensor, sent: ArrayRecord) -> None:
        """Keep what the local steps of a round need from its probe: G_r^i, and what was sent."""
        self.context.state[_POINT] = ArrayRecord({**sent, **pack({"anchor": anchor})})
        self.context.state[_POINT + ".tag"] = ConfigRecord({"tag": tag})

    def point(self, tag: str, dtype: torch.dtype) -> dict[str, Tensor] | None:
        """Return what the probe with this tag has left; None if it is not here."""
        known = self.context.state.config_records.get(_POINT + ".tag", ConfigRecord())
        if known.get("tag") != tag:
            return None
        return unpack(self.context.state.array_records[_POINT], dtype)

    def hold_state(self, base: str, tag: str, tensors: dict[str, Tensor]) -> None:
        """Keep the state after an exchange, and the one that it started from."""
        kept = {name: state for name, state in self.states.items() if name == base}
        self.states = {**kept, tag: tensors} if tensors else kept

    def save(self) -> None:
        """Write the memory; nothing may be sent before."""
        blob = b"".join(name + members for name, members in self.answered.items())
        if self.path is not None:
            tensors = {
                f"{tag}/{name}": tensor
                for tag, state in self.states.items()
                for name, tensor in state.items()
            }
            for name, content in ((_ANSWERED, blob), (_SKETCHES, self.sketches.blob())):
                tensors[name] = torch.from_numpy(np.frombuffer(content, np.uint8).copy())
            try:
                write_tensors(self.path, tensors)
            except OSError as error:
                reason = error.strerror or error
                raise EpisodeError(f"{self.path} cannot be written: {reason}.") from None
            return
        self._update(answered=blob, sketches=self.sketches.blob())
        for name in [n for n in self.context.state if n.startswith(_STATE)]:
            del self.context.state[name]
        for tag, state in self.states.items():
            self.context.state[_STATE + tag] = pack(state)

    def _update(self, **values: int | str | bytes) -> None:
        self._record().update(values)

    def _record(self) -> ConfigRecord:
        """Return what the SuperNode holds for this site, to be read and changed."""
        if SECURE not in self.context.state:
            self.context.state[SECURE] = ConfigRecord()
        return self.context.state.config_records[SECURE]

    def _read_answered(self, blob: bytes) -> None:
        for start in range(0, len(blob), _ENTRY):
            entry = blob[start : start + _ENTRY]
            self.answered[entry[:8]] = entry[8:]

    def _read_file(self, path: Path) -> None:
        try:
            tensors = load(read_regular(path))  # a pipe would be waited for
            lists = [tensors.pop(name).numpy().tobytes() for name in (_ANSWERED, _SKETCHES)]
        except (SafetensorError, OSError, KeyError) as error:
            raise EpisodeError(
                f"{path}, this site's state, is damaged: put back a copy of it, or remove it."
            ) from error
        self._read_answered(lists[0])
        self.sketches = Sketches.read(lists[1])
        for name, tensor in tensors.items():
            tag, _, field_name = name.partition("/")
            self.states.setdefault(tag, {})[field_name] = tensor


def _answered_before(masked: MaskedAsk, ask: Ask) -> AnsweredError:
    return AnsweredError(
        f"The {masked.step} of round {ask.round} was answered for another cohort: the difference "
        "of the two sums would show this site, so it needs fresh batches."
    )
