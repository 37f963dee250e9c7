"""`episode.diagnose`: what a model's loss and its clients are like, measured, and what follows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from episode.diagnosis.estimate import Estimates, estimate
from episode.diagnosis.measure import Point, Ruler
from episode.diagnosis.rehearsal import Rehearsal, Stage, rehearse
from episode.diagnosis.trajectory import Options, Path, walk
from episode.diagnosis.verdict import Verdict, first_eta, first_threshold, judge
from episode.federation.protocols import Task
from episode.federation.state import Buffers
from episode.tasks.neural import Loss, NeuralTask


@dataclass(frozen=True)
class Diagnosis:
    """Measurements, estimates and verdict; `print` it, or write it with `theory.report`."""

    title: str
    options: Options
    seed: int
    clients: int
    parameters: int
    points: list[Point]
    sizes: list[float]
    rehearsal: Rehearsal
    estimates: Estimates
    verdict: Verdict
    notes: tuple[str, ...]
    """What was left out or did not converge."""
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "title": self.title,
            "seed": self.seed,
            "clients": self.clients,
            "parameters": self.parameters,
            "options": asdict(self.options),
            "estimates": self.estimates.to_dict(),
            "verdict": self.verdict.to_dict(),
            "notes": list(self.notes),
            "rehearsal": self.rehearsal.to_dict(),
            "steps": self.sizes,
            "points": [p.to_dict() for p in self.points],
            "seconds": self.seconds,
        }

    def __str__(self) -> str:
        lines = [f"{f.question} {f.answer}\n    {f.because}." for f in self.verdict.findings]
        return "\n".join([self.title, *lines, *self.notes])


def diagnose(
    model: nn.Module,
    clients: Sequence[Any],
    loss: Loss,
    *,
    batch_size: int,
    seed: int = 0,
    collate: Callable[[list[Any]], Any] = default_collate,
    options: Options | None = None,
    observe: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Measures a model, its clients and its loss from where the model stands; leaves it as it was.

    `clients`, `loss` and `collate` are as for `fit`. Walks a path of steepest descent, measures
    norms, noise, heterogeneity and smoothness along it, fits the constants of the paper's
    Assumption 1, and says whether clipping and corrections are needed and where to start tuning.
    """
    task = NeuralTask(model, clients, loss, batch_size=batch_size, seed=seed, collate=collate)
    return diagnose_task(
        task, title=type(model).__name__, seed=seed, options=options, observe=observe
    )


def diagnose_task(
    task: Task,
    *,
    title: str,
    seed: int = 0,
    start: tuple[Tensor, Buffers] | None = None,
    options: Options | None = None,
    observe: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """The same for any task, from x_0 or from a state of your choice."""
    began = time.perf_counter()
    chosen = options or Options()
    x, buffers = start or task.initial()
    with _one_thread():
        ruler = Ruler(task, chosen.batches, seed)
        path = walk(ruler, x, buffers, chosen, observe)
        estimates = estimate(path.points, path.losses, seed)
        stage = Stage(
            task,
            ruler,
            (x, buffers),
            first_threshold(path.points, estimates),
            chosen.rehearsal,
            observe,
        )
        rehearsal = rehearse(stage, first_eta(path.sizes, path.losses), chosen.local_steps)
    verdict = judge(path.points, estimates, path.sizes, rehearsal)
    return Diagnosis(
        title,
        chosen,
        seed,
        task.num_clients,
        x.numel(),
        path.points,
        path.sizes,
        rehearsal,
        estimates,
        verdict,
        _notes(path, chosen),
        time.perf_counter() - began,
    )


def _notes(path: Path, options: Options) -> tuple[str, ...]:
    notes = []
    if path.note:
        notes.append(f"{path.note} Eigenvalues are left out; smoothness is that along the path.")
    sought = [c for p in path.points for c in p.hessian]
    open_ones = sum(not c.converged for c in sought)
    if sought:
        notes.append(
            f"Eigenvalues by power iteration, to {options.tolerance:g} or {options.iterations} "
            f"iterations: {len(sought) - open_ones} of {len(sought)} converged."
        )
    if len(path.sizes) < options.steps:
        notes.append(f"The path ended after {len(path.sizes)} steps: f falls no further there.")
    return tuple(notes)


@contextmanager
def _one_thread() -> Iterator[None]:
    """So that sums, and with them every figure, do not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
