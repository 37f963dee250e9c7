"""What crosses the wire: arrays and scalars in Flower's records, checked before they are used.

A message holds an `Ask` (which phase of which round, with which constants), arrays and, if the site
does not have it, the client's state. A reply names the message that it answers. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.federation.protocols import Phase, Reply
from episode.federation.state import Buffers, ClientState
from episode.federation.worker import CORRECTION_METRICS, TRUST_METRICS, ReplyForm
from episode.flower.checks import Rejected as Rejected, check_label, read_array, read_metrics

ASK = "episode.ask"
ANSWER = "episode.answer"
ARRAYS = "episode.arrays"
STATE = "episode.state"
METRICS = "episode.metrics"
PROTOCOL = 4
_FLOATS = {
    "int16": torch.bfloat16,  # numpy does not have it: it travels as its bits
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


@dataclass(frozen=True)
class Ask:
    """What a site is asked to do, and which state it must start from."""

    phase: Phase | Literal["evaluate"]
    tag: str
    """Name of this exchange, and of the state that the site holds after it."""
    seed: int
    algorithm: str
    """The algorithm as JSON."""
    told: str = ""
    """What the site is told of the sites' agreement, as JSON; empty if there is none."""
    round: int = 0
    expects: str = ""
    """Tag of the state to start from; empty for none."""
    memorise: bool = False
    batches: int = 1
    """How many batches a probe averages."""
    eta: float = 0.0
    gamma: float = 0.0
    G_norm: float = 0.0
    local_steps: int = 0
    measure_every: int = 0
    protocol: int = PROTOCOL

    @classmethod
    def of(cls, content: RecordDict) -> Ask:
        """Read the ask of a message."""
        values: dict[str, Any] = dict(content.config_records[ASK])
        if values.get("protocol") != PROTOCOL:
            raise Rejected(
                f"speaks version {values.get('protocol')} of our messages, not {PROTOCOL}: "
                "install the same version of episode-fl on server and sites"
            )
        return cls(**values)

    def about(self, broadcast: Mapping[str, Any]) -> Ask:
        """Return this ask with the scalars of a broadcast, some of which may be tensors."""
        types: dict[str, Any] = {f.name: type(f.default) for f in fields(self)}
        return replace(self, **{n: types[n](broadcast[n]) for n in types if n in broadcast})

    def record(self, expects: str) -> ConfigRecord:
        """Return the record for a site whose state has the tag `expects`."""
        return ConfigRecord(asdict(replace(self, expects=expects)))

    def built(self) -> Algorithm:
        """Return the algorithm that the site follows."""
        return Algorithm.from_dict(json.loads(self.algorithm))

    def form(self, algorithm: Algorithm) -> ReplyForm:
        """Return the form of the replies to this ask."""
        assert self.phase != "evaluate"
        return ReplyForm.of(algorithm, self.phase, self.memorise, self.measure_every)

    def measured(self, algorithm: Algorithm, client: int, corrects: bool) -> set[str]:
        """Return the metrics that a client always measures for this ask (see `Worker`).

        Args:
            algorithm: The algorithm.
            client: The client.
            corrects: Whether its steps are corrected.
        """
        if self.phase == "probe":
            return {"loss"}
        names = {"clipped", "drift"}
        if not (algorithm.reuse_probe and self.local_steps == 1):
            names.add("loss")
        if algorithm.clipping.asks_for_norm(self.G_norm, self.eta, self.gamma):
            names.add("largest_norm")
        if algorithm.trust.measures:
            names.update(TRUST_METRICS)
        if corrects and self.measure_every and (self.round + client) % self.measure_every == 0:
            names.update(CORRECTION_METRICS)
        return names


@dataclass
class Held:
    """A client's state, and the tag by which its site knows it."""

    state: ClientState = field(default_factory=ClientState)
    tag: str = ""


@dataclass
class Answer(Held):
    """A reply of the right form, with the client's state after it."""

    reply: Reply = field(default_factory=lambda: Reply({}))

    @classmethod
    def read(
        cls,
        content: RecordDict,
        ask: Ask,
        client: int,
        before: ClientState,
        broadcast: Mapping[str, Any],
    ) -> Answer:
        """Read a client's reply; reject one of another form, or to another message.

        Args:
            content: The reply.
            ask: What the client was asked.
            client: The client.
            before: Its state when it was asked.
            broadcast: What it was sent: x̄_r and the buffers give the shapes of its reply.
        """
        about = {"status": "done", "client": client, "round": ask.round, "tag": ask.tag}
        check_label(label_of(content), about)
        algorithm = ask.built()
        form = ask.form(algorithm)
        # A client sends its memory, and the server, which has the old one, computes the change.
        names = ["memory" if name == "change" else name for name in form.vectors]
        if ask.phase == "local":
            names += algorithm.descent.kept
        like = dict.fromkeys(names, broadcast["x"])
        if "steps" in like:
            like["steps"] = torch.zeros(1, dtype=torch.int64)
        if form.has_buffers:
            like |= vars(broadcast["buffers"])
        tensors = _unpack_like(content.array_records.get(ARRAYS, ArrayRecord()), like)
        buffers = buffers_of(tensors) if form.has_buffers else None
        record = content.metric_records.get(METRICS, MetricRecord())
        measured = ask.measured(algorithm, client, broadcast.get("G") is not None)
        metrics = read_metrics(record, form.metrics, measured)
        if ask.phase == "probe":
            gradient = tensors["gradient"]
            kept = {"memory": gradient} if ask.memorise else {"anchor": gradient}
            reply = Reply({"gradient": gradient}, buffers, metrics)
            return cls(replace(before, **kept), ask.tag, reply)
        after = ClientState.of(tensors)
        vectors = {"x": tensors["x"]}
        if after.memory is not None:
            old = before.memory
            vectors["change"] = after.memory if old is None else after.memory - old
        return cls(after, ask.tag, Reply(vectors, buffers, metrics))


def labelled(
    label: Mapping[str, Any],
    arrays: Mapping[str, Tensor | None] | None = None,
    metrics: Mapping[str, Any] | None = None,
) -> RecordDict:
    """Return a reply that says `label` about itself."""
    return RecordDict(
        {
            ANSWER: ConfigRecord(dict(label)),
            ARRAYS: pack(arrays or {}),
            METRICS: MetricRecord(dict(metrics or {})),
        }
    )


def label_of(content: RecordDict) -> dict[str, Any]:
    """Return what a reply says about itself; empty if it says nothing."""
    return dict(content.config_records.get(ANSWER, ConfigRecord()))


def pack(tensors: Mapping[str, Tensor | None]) -> ArrayRecord:
    """Return these tensors as arrays, without those that are None or empty."""
    arrays: dict[str, Array] = {}
    for name, tensor in tensors.items():
        if tensor is not None and tensor.numel():
            stored = tensor.detach().cpu()
            bits = stored.view(torch.int16) if stored.dtype == torch.bfloat16 else stored
            arrays[name] = Array(bits.numpy())
    return ArrayRecord(arrays)


def unpack(record: ArrayRecord, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of a record, of whatever names and shapes.

    They are of `dtype`, except for counts and buffers: integers are int64, and floats of their own
    type.
    """
    types = dict.fromkeys(record, dtype)
    types |= {name: torch.int64 for name in ("integers", "steps") if name in record}
    if "floats" in record:
        types["floats"] = _FLOATS.get(record["floats"].dtype, dtype)
    return {name: read_array(name, a, tuple(a.shape), types[name]) for name, a in record.items()}


def buffers_of(tensors: Mapping[str, Tensor]) -> Buffers:
    """Return buffers that were packed as `floats` and `integers`."""
    return Buffers(**{name: tensors[name] for name in ("floats", "integers") if name in tensors})


def _unpack_like(record: ArrayRecord, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a record; reject it unless it has these names, shapes and types."""
    expected = {name: tensor for name, tensor in like.items() if tensor.numel()}
    if set(record) != set(expected):
        raise Rejected(f"sent the arrays {sorted(record)} instead of {sorted(expected)}")
    return {n: read_array(n, record[n], tuple(t.shape), t.dtype) for n, t in expected.items()}
