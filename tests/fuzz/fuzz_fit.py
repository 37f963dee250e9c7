"""Arguments, models, losses and data of `fit`: a run that has trained, or an EpisodeError."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fuzzing import Case, Kind, is_one_sentence, odd_text, own_folder, quiet
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parameter import is_lazy
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import episode
from episode import Algorithm, Cyclic, EpisodeError, Full, Schedule, Uniform
from episode.core import ALGORITHMS
from episode.runs.records import Run

WIDTH = 3


class Rotary(nn.Module):
    """A layer with buffers of several types."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 1)
        self.register_buffer("phases", torch.polar(torch.ones(WIDTH), torch.arange(3.0)))
        self.register_buffer("wide", torch.tensor([1 / 3], dtype=torch.float64))
        self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        return self.linear((x * self.phases).real.float()) * self.wide.float()


class Tied(nn.Module):
    """Two layers that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(WIDTH, n) for n in (WIDTH, WIDTH, 1))
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x)))


class Recurrent(nn.Module):
    """A network that reads the features one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(1, 2, batch_first=True), nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x[..., None])[0][:, -1])


def frozen(model: nn.Module, names: Sequence[str] = ("0.weight",)) -> nn.Module:
    for name, p in model.named_parameters():
        p.requires_grad_(name not in names)
    return model


def filled(value: float) -> nn.Module:
    model = nn.Linear(WIDTH, 1)
    nn.init.constant_(model.weight, value)
    return model


def hooked() -> nn.Module:
    model = nn.Linear(WIDTH, 1)
    model.weight.register_hook(lambda g: g * 0)
    return model


def under_inference() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(WIDTH, 1)


def with_attribute(value: object) -> nn.Module:
    model = nn.Linear(WIDTH, 1)
    model.extra = value  # type: ignore[assignment]
    return model


def deep() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


MODELS: dict[str, Callable[[], Any]] = {
    "linear": lambda: nn.Linear(WIDTH, 1),
    "deep": deep,
    "double": lambda: nn.Linear(WIDTH, 1).double(),
    "half": lambda: nn.Linear(WIDTH, 1).half(),
    "bfloat16": lambda: nn.Linear(WIDTH, 1).bfloat16(),
    "complex": lambda: nn.Linear(WIDTH, 1).to(torch.complex64),
    "mixed types": lambda: nn.Sequential(nn.Linear(WIDTH, 2), nn.Linear(2, 1).double()),
    "mixed frozen": lambda: frozen(nn.Sequential(nn.Linear(WIDTH, 2), nn.Linear(2, 1)), ["0.bias"]),
    "frozen": lambda: frozen(nn.Linear(WIDTH, 1), ["weight", "bias"]),
    "evaluating": lambda: deep().eval(),
    "rotary": Rotary,
    "tied": Tied,
    "recurrent": Recurrent,
    "lazy": lambda: nn.LazyLinear(1),
    "meta": lambda: nn.Linear(WIDTH, 1, device="meta"),
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 1)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, 1)),
    "pruned": lambda: prune.l1_unstructured(nn.Linear(WIDTH, 1), "weight", amount=1),
    "inference": under_inference,
    "scripted": lambda: torch.jit.script(nn.Linear(WIDTH, 1)),
    "hooked": hooked,
    "nan": lambda: filled(math.nan),
    "huge": lambda: filled(1e38),
    "zero": lambda: filled(0.0),
    "empty": lambda: nn.Sequential(),
    "parameter of no numbers": lambda: nn.Linear(0, 1),
    "generator inside": lambda: with_attribute(x for x in ()),
    "itself inside": lambda: with_attribute([nn.Linear(1, 1)]),
    "class": lambda: nn.Linear,
    "none": lambda: None,
    "function": lambda: F.relu,
    "tensor": lambda: torch.zeros(3),
}


def inputs_of(n: int, kind: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(n, WIDTH, generator=generator)
    y = torch.randn(n, 1, generator=generator) + 2
    if kind in VALUES:
        x = x * VALUES[kind]
    if kind in TYPES:
        x, y = x.to(TYPES[kind]), y.to(TYPES[kind])
    return x, y


VALUES = {"nan": math.nan, "infinite": math.inf, "huge": 1e30, "zero": 0.0}
TYPES = {
    "double": torch.float64,
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "integers": torch.int64,
    "complex": torch.complex64,
    "booleans": torch.bool,
}
FORMS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "tuple": lambda x, y: (x, y),
    "list": lambda x, y: [x, y],
    "dataset": TensorDataset,
    "pairs": lambda x, y: list(zip(x, y, strict=True)),
    "arrays": lambda x, y: tuple(t.float().numpy() for t in (x.real, y.real)),
    "dicts": lambda x, y: [{0: a, 1: b} for a, b in zip(x, y, strict=True)],
    "one": lambda x, y: x,
    "unequal": lambda x, y: (x, y[:-1]),
    "scalars": lambda x, y: (torch.tensor(1.0), torch.tensor(1.0)),
    "of another width": lambda x, y: (x[:, :2], y),
    "loader": lambda x, y: DataLoader(TensorDataset(x, y)) if len(x) else None,
    "iterator": lambda x, y: iter([(x, y)]),
    "text": lambda x, y: "data",
    "none": lambda x, y: None,
    "number": lambda x, y: 3,
    "empty": lambda x, y: (),
    "sparse": lambda x, y: (x.to_sparse(), y),
    "with graph": lambda x, y: (x.float().requires_grad_() * 1, y),
    "texts": lambda x, y: ["a"] * len(x),
    "strided": lambda x, y: (x.t().contiguous().t(), y.expand(-1, 1)),
}


def squares(model: Any, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


OTHER = nn.Linear(WIDTH, 1)
LOSSES: dict[str, Any] = {
    "squares": squares,
    "absolute": lambda m, b: (m(b[0]) - b[1]).abs().mean(),
    "sum": lambda m, b: (m(b[0]) - b[1]).square().sum(),
    "vector": lambda m, b: (m(b[0]) - b[1]).square(),
    "shape [1]": lambda m, b: squares(m, b)[None],
    "constant": lambda m, b: torch.tensor(1.0),
    "constant with gradient": lambda m, b: torch.tensor(1.0, requires_grad=True),
    "of another model": lambda m, b: squares(OTHER, b),
    "partly of another model": lambda m, b: squares(m, b) + squares(OTHER, b),
    "detached": lambda m, b: squares(m, b).detach(),
    "number": lambda m, b: 1.0,
    "none": lambda m, b: None,
    "nan": lambda m, b: squares(m, b) * math.nan,
    "infinite": lambda m, b: squares(m, b) + math.inf,
    "huge": lambda m, b: squares(m, b) * 1e38,
    "zero": lambda m, b: squares(m, b) * 0,
    "complex": lambda m, b: squares(m, b) * 1j,
    "half": lambda m, b: squares(m, b).half(),
    "integer": lambda m, b: squares(m, b).long(),
    "raises": lambda m, b: 1 / 0,
    "raises nothing": lambda m, b: next(iter(())),
    "raises a key": lambda m, b: {}["\x1b[31m\nred"],
    "random": lambda m, b: squares(m, b) * torch.rand(()),
    "changes the model": lambda m, b: squares(nn.Linear(WIDTH, 1), b),
    "under inference": torch.inference_mode()(squares),
    "root": lambda m, b: squares(m, b).sqrt(),
    "of one argument": lambda m: m,
    "text": "mse",
    "nothing": None,
}
OBJECTS: dict[str, Any] = {
    "numpy.int64(2)": np.int64(2),
    "numpy.float32(0.5)": np.float32(0.5),
    "numpy.bool_(True)": np.bool_(True),
    "numpy.array(0.5)": np.array(0.5),
    "tensor(2)": torch.tensor(2),
    "tensor(0.5)": torch.tensor(0.5),
    "a tensor": torch.zeros(3),
    "10**400": 10**400,
    "1j": 1j,
    "b'x'": b"x",
    "object": object(),
    "list": list,
    "print": lambda *a, **k: None,
    "metrics": lambda *a: {"accuracy": 0.5},
    "odd metrics": lambda *a: {3: "text"},
    "nan metrics": lambda *a: {"accuracy": math.nan},
    "tensor metrics": lambda *a: {"accuracy": torch.zeros(2)},
    "raises": lambda *a: 1 / 0,
    "Path": Path("run"),
    "Full()": Full(),
    "Uniform(1)": Uniform(1),
    "Uniform(99)": Uniform(99),
    "Cyclic(2)": Cyclic(2),
    "Cyclic": Cyclic,
    "Schedule": Schedule(0.1, 0.1),
    "Schedule of text": "constant",
    "Algorithm": Algorithm.named("scaffold", momentum=0.9),
    "Algorithm class": Algorithm,
    "Monitor()": episode.Monitor(),
    "range(2)": range(2),
    "data": [inputs_of(2, ""), inputs_of(3, "")],
}
"""Values that JSON cannot hold, by the name that cases hold in their place."""
objects = st.sampled_from(sorted(OBJECTS)).map(lambda name: {"object": name})
numbers = st.one_of(
    st.integers(-2, 4),
    st.floats(0, 2).map(lambda x: round(x, 3)),
    st.sampled_from([0, 0.0, -1, 1e-300, 1e300, 1e30, math.nan, math.inf, -math.inf, 10**30]),
)
anything = st.one_of(
    numbers, objects, st.none(), st.booleans(), odd_text, st.lists(numbers, max_size=2)
)
GOOD_MODELS = ["linear", "deep", "double", "rotary", "tied", "recurrent", "mixed frozen", "zero"]
GOOD_LOSSES = ["squares", "absolute", "sum", "random", "root"]
counts, steps = st.integers(1, 3), st.sampled_from([0.1, 0.5, 1.0])
silo = st.fixed_dictionaries({
    "examples": st.integers(2, 5), "values": st.just("usual"), "form": st.just("tuple"),
})  # fmt: skip
odd_silo = st.fixed_dictionaries(
    {
        "examples": st.integers(0, 5),
        "values": st.just("usual") | st.sampled_from(sorted(VALUES | TYPES)),
        "form": st.just("tuple") | st.sampled_from(sorted(FORMS)),
    }
)
USUAL: dict[str, st.SearchStrategy[Any]] = {
    "model": st.sampled_from(GOOD_MODELS),
    "loss": st.sampled_from(GOOD_LOSSES),
    "clients": st.lists(silo, min_size=1, max_size=3),
    "eta": steps,
    "gamma": steps,
    "local_steps": counts,
    "rounds": st.integers(1, 2),
    "batch_size": counts,
    "algorithm": st.sampled_from(sorted(ALGORITHMS)) | st.just({"object": "Algorithm"}),
    "seed": st.integers(0, 9),
    "folder": st.sampled_from(["run", "a/b", {"object": "Path"}]),
    "schedule": st.just({"object": "Schedule"}),
    "cohorts": st.sampled_from([{"object": "Full()"}, {"object": "Uniform(1)"}]),
    "evaluate": st.just({"object": "metrics"}),
    "evaluate_every": st.integers(0, 2),
    "holdout": st.sampled_from([0.2, 0.5]),
    "evaluate_client": st.just({"object": "metrics"}),
    "per_client": st.booleans(),
    "client_names": st.just(["a", "b"]),
    "collate": st.just({"object": "print"}),
    "precision": st.sampled_from(["float32", "bfloat16"]),
    "engine": st.sampled_from(["simulation", "batched"]),
    "workers": st.integers(1, 2),
    "timeout_seconds": st.just(60.0),
    "checkpoint_seconds": st.sampled_from([0, 0.0, 30]),
    "state_memory_mb": st.sampled_from([0, 1e-9, 10]),
    "observe": st.just({"object": "print"}),
    "monitor": st.booleans(),
}
"""Values with which `fit` trains, if they suit each other."""
REQUIRED = ("model", "loss", "clients", "eta", "gamma", "local_steps", "rounds", "batch_size")
ODD: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(USUAL, anything),
    "model": st.sampled_from(sorted(MODELS)),
    "loss": st.sampled_from(sorted(LOSSES)),
    "clients": st.lists(odd_silo, min_size=1, max_size=2) | anything,
    "rounds": st.sampled_from([0, -1, 1.0, math.nan, None, True]) | objects | odd_text,
    "folder": st.sampled_from(["", ".", "file", "file/x", "\0", "x" * 300]) | objects,
    "engine": st.sampled_from(["flower", "distributed", "x.py:E", "Simulation"]) | anything,
    "client_names": st.lists(odd_text, max_size=3) | anything,
}


@st.composite
def calls(draw: st.DrawFn) -> Case:
    """Return a call of `fit` in which nothing, or a few things, are odd."""
    optional = sorted(USUAL.keys() - set(REQUIRED))
    given = [*REQUIRED, *draw(st.lists(st.sampled_from(optional), max_size=3, unique=True))]
    odd = draw(st.lists(st.sampled_from(given), max_size=2, unique=True))
    values = {name: draw((ODD if name in odd else USUAL)[name]) for name in given}
    return {name: values.pop(name) for name in REQUIRED[:3]} | {"arguments": values}


def built(value: Any) -> Any:
    """Return the value that a case's JSON stands for."""
    if isinstance(value, dict) and value.keys() == {"object"}:
        return OBJECTS[value["object"]]
    return value


def data_of(clients: Any) -> Any:
    if not isinstance(clients, list) or not all(isinstance(c, dict) for c in clients):
        return built(clients)
    return [FORMS[c["form"]](*inputs_of(c["examples"], c["values"])) for c in clients]


def check(case: Case) -> str:
    """Call `fit`, and look at what has become of the model."""
    given = {name: built(value) for name, value in case["arguments"].items()}
    torch.manual_seed(0)
    with own_folder(), quiet():
        Path("file").touch()
        model, clients, loss = (
            MODELS[case["model"]](),
            data_of(case["clients"]),
            LOSSES[case["loss"]],
        )
        before = copy.deepcopy(parameters(model))
        expected = first_gradient(model, clients, loss)
        try:
            run = episode.fit(model, clients, loss, **given)
        except EpisodeError as error:
            is_one_sentence(str(error))
            return "refused"
        check_run(run, model, before, given)
        if run.status == "finished" and moves(expected, given) and case["model"] != "hooked":
            changed = [k for k, p in parameters(model).items() if not torch.equal(p, before[k])]
            assert changed, "the run has finished, and nothing was trained"
    return run.status


def parameters(model: Any) -> dict[str, Tensor]:
    if not isinstance(model, nn.Module):
        return {}
    known = (item for item in model.named_parameters() if not is_lazy(item[1]))
    return {name: p.detach() for name, p in known}


def first_gradient(model: Any, clients: Any, loss: Any) -> float:
    """Return the largest entry of the gradient on the first client's data; 0 if there is none."""
    try:
        probe = copy.deepcopy(model)
        trained = [p for p in probe.parameters() if p.requires_grad]
        value = loss(probe, clients[0])
        found = torch.autograd.grad(value, trained, allow_unused=True)
        sizes = [float(g.abs().max()) for g in found if g is not None and g.numel()]
        return max(s for s in sizes if math.isfinite(s))
    except Exception:  # noqa: BLE001 - it is the call of `fit` that is tested
        return 0.0


def moves(gradient: float, given: dict[str, Any]) -> bool:
    """Whether steps of this size along such a gradient must be seen in the parameters."""
    usual = all(
        isinstance(given[name], (int, float)) and 0.05 <= given[name] <= 2
        for name in ("eta", "gamma")
    )
    return usual and 1e-2 < gradient < 1e4 and not given.keys() & {"schedule", "cohorts", "holdout"}


def check_run(run: Run, model: Any, before: dict[str, Tensor], given: dict[str, Any]) -> None:
    """Check that a run is complete, and what it says about itself is so."""
    assert run.model is model
    assert run.status in ("finished", "diverged"), run.status
    assert run.summary["status"] == run.status
    assert run.summary["rounds"] == len(run.history) >= 1
    assert [record["round"] for record in run.history] == list(range(len(run.history)))
    if run.status == "finished":
        rounds = int(given["rounds"])
        assert len(run.history) in (rounds, rounds * int(given["local_steps"]))
        assert all(math.isfinite(record["loss"]) for record in run.history)
        assert torch.isfinite(run.x).all()
    for name, p in parameters(model).items():
        assert p.dtype == before[name].dtype
        assert p.shape == before[name].shape


KIND = Kind("fit", calls(), check)
