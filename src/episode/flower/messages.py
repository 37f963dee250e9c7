"""What crosses the wire: arrays and scalars in Flower's records, checked before they are used.

A message holds an `Ask` (which phase of which round, with which constants), arrays and, if the site
does not have it, the client's state. A reply names the message that it answers. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from episode.core.algorithm import Algorithm
from episode.federation.protocols import Phase
from episode.federation.state import Buffers, ClientState

HELLO, PROBE, LOCAL = "query.episode", "train.probe", "train.local"
ASK, ANSWER, ARRAYS, STATE, METRICS, CONFIG = (
    "episode.ask",
    "episode.answer",
    "episode.arrays",
    "episode.state",
    "episode.metrics",
    "config",
)
PROTOCOL = 1
_HEADER = 4096
"""Upper bound on the bytes that a serialised array has beyond its values."""

Form = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class Rejected(Exception):  # noqa: N818 - the reply is rejected; the run has not failed
    """A reply must not be used; the message says why."""

    def __init__(self, reason: str, non_finite: bool = False) -> None:
        super().__init__(reason)
        self.non_finite = non_finite


@dataclass(frozen=True)
class Ask:
    """What a site is asked to do, and which state it must start from."""

    phase: Phase
    round: int
    tag: str
    """Name of this exchange, and of the state that the site holds after it."""
    expects: str
    """Tag of the state to start from; empty for none."""
    seed: int
    algorithm: str
    """The algorithm as JSON."""
    memorise: bool = False
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

    def starting_from(self, tag: str) -> Ask:
        """Return the same ask, for a site whose state has this tag."""
        return replace(self, expects=tag)

    def record(self) -> ConfigRecord:
        return ConfigRecord(asdict(self))

    def built(self) -> Algorithm:
        return Algorithm.from_dict(json.loads(self.algorithm))


def pack(tensors: Mapping[str, Tensor | None]) -> ArrayRecord:
    """Return these tensors as arrays, without those that are None or empty."""
    arrays = {
        name: Array(_storable(t.detach().cpu()).numpy())
        for name, t in tensors.items()
        if t is not None and t.numel()
    }
    return ArrayRecord(arrays)


def form_of(tensors: Mapping[str, Tensor | None]) -> Form:
    """Return the shapes and types that `pack` gives these tensors."""
    return {
        name: (tuple(t.shape), t.dtype)
        for name, t in tensors.items()
        if t is not None and t.numel()
    }


def unpack(record: ArrayRecord, form: Form) -> dict[str, Tensor]:
    """Return the tensors of a record; reject it unless it has exactly this form."""
    if set(record) != set(form):
        raise Rejected(f"sent the arrays {sorted(record)} instead of {sorted(form)}")
    return {name: _tensor(name, record[name], *form[name]) for name in form}


def unpack_any(record: ArrayRecord, dtype: torch.dtype) -> dict[str, Tensor]:
    """Return the tensors of a record that this side has packed itself."""
    return {
        name: _tensor(name, a, tuple(a.shape), torch.int64 if name == "integers" else dtype)
        for name, a in record.items()
    }


def check_finite(tensors: Mapping[str, Tensor], metrics: Mapping[str, Any]) -> None:
    """Reject a reply that has a NaN or an infinity anywhere."""
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise Rejected(f"sent a {name} that is not finite", non_finite=True)
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise Rejected(f"sent a {name} of {value}", non_finite=True)


def label_of(content: RecordDict) -> dict[str, Any]:
    """Return what a reply says about itself; empty if it says nothing."""
    return dict(content.config_records.get(ANSWER, ConfigRecord()))


def metrics_of(content: RecordDict, names: tuple[str, ...]) -> dict[str, float | None]:
    """Return metrics by name; those that were not measured are None."""
    record = content.metric_records.get(METRICS, MetricRecord())
    values = {name: record.get(name) for name in names}
    for name, value in values.items():
        if value is not None and not isinstance(value, (int, float)):
            raise Rejected(f"sent a {name} that is not a number")
    return {name: None if v is None else float(v) for name, v in values.items()}  # type: ignore[arg-type]


def state_arrays(state: ClientState, **more: Tensor | None) -> ArrayRecord:
    """Return a client's whole state as arrays."""
    held = {"anchor": state.anchor, "memory": state.memory, "velocity": state.velocity}
    return pack({**held, **more})


def state_of(tensors: Mapping[str, Tensor]) -> ClientState:
    """Return the state that `state_arrays` packed."""
    return ClientState(tensors.get("anchor"), tensors.get("memory"), tensors.get("velocity"))


def buffers_of(tensors: Mapping[str, Tensor]) -> Buffers:
    """Return buffers that were packed as `floats` and `integers`."""
    none = Buffers()
    return Buffers(tensors.get("floats", none.floats), tensors.get("integers", none.integers))


def _storable(tensor: Tensor) -> Tensor:
    """Return the tensor as numpy can hold it: bfloat16 travels as its bits."""
    return tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor


def _tensor(name: str, array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    stored = torch.int16 if dtype == torch.bfloat16 else dtype
    kind = str(stored).removeprefix("torch.")
    if array.dtype != kind or tuple(array.shape) != shape:
        raise Rejected(
            f"sent a {name} of {array.dtype} {list(array.shape)} instead of {kind} {list(shape)}"
        )
    expected = math.prod(shape) * stored.itemsize
    if not expected <= len(array.data) <= expected + _HEADER:
        raise Rejected(f"sent a {name} of {len(array.data)} bytes instead of {expected}")
    try:
        values = array.numpy()
    except (ValueError, TypeError, OSError, EOFError, SyntaxError, MemoryError) as error:
        raise Rejected(f"sent a {name} that cannot be read ({type(error).__name__})") from None
    if values.shape != shape or str(values.dtype) != kind:
        raise Rejected(f"sent a {name} whose content is not what its label says")
    return torch.from_numpy(values).view(dtype)
