"""What crosses the wire: arrays and scalars in Flower's records, checked before they are used.

A message is an `Ask` (which phase of which round, with which constants), arrays, and, for a site
that does not hold it, the client's state. A reply names what it replies to. Nothing is pickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
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
"""More bytes than the header of a serialised array has."""

Form = Mapping[str, tuple[tuple[int, ...], torch.dtype]]


class Rejected(Exception):  # noqa: N818 - a reply is; nothing has failed
    """A reply that may not be used, and why."""

    def __init__(self, reason: str, non_finite: bool = False) -> None:
        super().__init__(reason)
        self.non_finite = non_finite


@dataclass(frozen=True)
class Ask:
    """What a site is asked for. It also says what the site's state must be, by its tag."""

    phase: Phase
    round: int
    tag: str
    """Names this exchange; the state that the site holds afterwards is known by it."""
    expects: str
    """The tag of the state to start from; empty for none."""
    seed: int
    algorithm: str
    """As JSON."""
    memorise: bool = False
    eta: float = 0.0
    gamma: float = 0.0
    G_norm: float = 0.0
    local_steps: int = 0
    protocol: int = PROTOCOL

    @classmethod
    def of(cls, content: RecordDict) -> Ask:
        """The ask of a message."""
        values: dict[str, Any] = dict(content.config_records[ASK])
        if values.get("protocol") != PROTOCOL:
            raise Rejected(
                f"speaks version {values.get('protocol')} of our messages, not {PROTOCOL}: "
                "install the same version of episode-fl on server and sites"
            )
        return cls(**values)

    def record(self) -> ConfigRecord:
        return ConfigRecord(asdict(self))

    def built(self) -> Algorithm:
        return Algorithm.from_dict(json.loads(self.algorithm))


def pack(tensors: Mapping[str, Tensor | None]) -> ArrayRecord:
    """Arrays of these tensors; what is None or empty stays at home."""
    arrays = {
        name: Array(_storable(t.detach().cpu()).numpy())
        for name, t in tensors.items()
        if t is not None and t.numel()
    }
    return ArrayRecord(arrays)


def form_of(tensors: Mapping[str, Tensor | None]) -> Form:
    """The form that `pack` gives them."""
    return {
        name: (tuple(t.shape), t.dtype)
        for name, t in tensors.items()
        if t is not None and t.numel()
    }


def unpack(record: ArrayRecord, form: Form) -> dict[str, Tensor]:
    """The tensors of a record; rejected unless they are of this form, to the byte."""
    if set(record) != set(form):
        raise Rejected(f"sent the arrays {sorted(record)} instead of {sorted(form)}")
    return {name: _tensor(name, record[name], *form[name]) for name in form}


def unpack_any(record: ArrayRecord, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of a record from our own side."""
    return {
        name: _tensor(name, a, tuple(a.shape), torch.int64 if name == "integers" else dtype)
        for name, a in record.items()
    }


def check_finite(tensors: Mapping[str, Tensor], metrics: Mapping[str, Any]) -> None:
    """Rejects a reply with a NaN or an infinity anywhere."""
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise Rejected(f"sent a {name} that is not finite", non_finite=True)
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise Rejected(f"sent a {name} of {value}", non_finite=True)


def label_of(content: RecordDict) -> dict[str, Any]:
    """What a reply says that it is; empty where it does not."""
    return dict(content.config_records.get(ANSWER, ConfigRecord()))


def metrics_of(content: RecordDict, names: tuple[str, ...]) -> dict[str, float | None]:
    """Numbers by name; those that were not measured are None."""
    record = content.metric_records.get(METRICS, MetricRecord())
    values = {name: record.get(name) for name in names}
    for name, value in values.items():
        if value is not None and not isinstance(value, (int, float)):
            raise Rejected(f"sent a {name} that is not a number")
    return {name: None if v is None else float(v) for name, v in values.items()}  # type: ignore[arg-type]


def state_arrays(state: ClientState, **more: Tensor | None) -> ArrayRecord:
    """A client's whole state, as its site holds it or is given it."""
    held = {"anchor": state.anchor, "memory": state.memory, "velocity": state.velocity}
    return pack({**held, **more})


def state_of(tensors: Mapping[str, Tensor]) -> ClientState:
    """The state of `state_arrays`."""
    return ClientState(tensors.get("anchor"), tensors.get("memory"), tensors.get("velocity"))


def buffers_of(tensors: Mapping[str, Tensor]) -> Buffers:
    """Buffers that were packed as `floats` and `integers`."""
    none = Buffers()
    return Buffers(tensors.get("floats", none.floats), tensors.get("integers", none.integers))


def _storable(tensor: Tensor) -> Tensor:
    """As numpy can hold it: bfloat16 travels as its bits."""
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
