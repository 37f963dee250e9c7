"""`episode.diagnose`: measure a model's loss and its clients, and recommend how to train."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from episode.diagnosis.decisions import ShortRuns
from episode.diagnosis.estimate import Estimates, estimate
from episode.diagnosis.findings import GLOSSARY
from episode.diagnosis.measure import Measurer, Point, State
from episode.diagnosis.options import DiagnosisOptions
from episode.diagnosis.short_runs import ShortRunner, try_settings
from episode.diagnosis.trajectory import Trajectory, descend
from episode.diagnosis.verdict import Verdict, first_eta, first_threshold, reach_verdict
from episode.federation.protocols import Task
from episode.results.run_html import html_rows
from episode.runs.progress import shown_steps
from episode.tasks.neural import Loss, NeuralTask


@dataclass(frozen=True)
class Diagnosis:
    """Result of `diagnose`: measurements, estimates and a verdict.

    `print` it to read the verdict; `episode.diagnosis.report` writes it as HTML or JSON.

    Args:
        title: What was diagnosed.
        options: How much was measured.
        seed: Seed of the measuring batches.
        clients: Number of clients.
        parameters: Number of trainable parameters.
        points: Measurements at each point of the descent.
        step_sizes: Step sizes that the line search of the descent accepted.
        short_runs: The short test runs, and the settings that they lead to.
        estimates: Constants of the paper's Assumption 1: `L0`, `L1`, `sigma`, `kappa`, `rho` and
            `delta`, with ranges.
        verdict: The recommendation: `algorithm`, `eta`, `threshold` (γ/η), `local_steps`, whether
            `clipping` and `correction` are needed, and the `findings` in words.
        notes: What was left out or did not converge.
        seconds: How long the diagnosis took.

    Example:
        >>> from episode.diagnosis.diagnose import diagnose_task
        >>> from episode.diagnosis.options import DiagnosisOptions
        >>> from episode.tasks.relaxed_smooth import RelaxedSmooth
        >>> task = RelaxedSmooth(num_clients=2).build(seed=0, device="cpu")
        >>> quick = DiagnosisOptions(steps=6, points=4, local_steps=4, rehearsal=16)
        >>> found = diagnose_task(task, title="an example", options=quick)
        >>> sorted(found.to_dict()["estimates"])[:3]
        ['L0', 'L1', 'delta']
        >>> print(found)  # doctest: +ELLIPSIS
        Diagnosis of an example
        f is the training loss, ...
        Is clipping needed? ...
    """

    title: str
    options: DiagnosisOptions
    seed: int
    clients: int
    parameters: int
    points: list[Point]
    step_sizes: list[float]
    short_runs: ShortRuns
    estimates: Estimates
    verdict: Verdict
    notes: tuple[str, ...]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return every measurement, estimate and finding as plain values for JSON."""
        values = asdict(self)
        values["steps"] = values.pop("step_sizes")
        del values["short_runs"]
        return values | {
            "estimates": self.estimates.to_dict(),
            "rehearsal": self.short_runs.to_dict(),
        }

    def _repr_html_(self) -> str:
        """Return the verdict as notebooks show it: a question, an answer and a reason per row."""
        rows = {f.question: f"{f.answer}. {f.because}" for f in self.verdict.findings}
        notes = {"Notes": " ".join(self.notes)}
        return html_rows(f"Diagnosis of {self.title}", rows | notes)

    def __str__(self) -> str:
        findings = [f"{f.question} {f.answer}\n    {f.because}" for f in self.verdict.findings]
        stuck = self.verdict.unknown[:1] if self.short_runs.stuck else ()
        return "\n".join([f"Diagnosis of {self.title}", GLOSSARY, *findings, *stuck, *self.notes])


def diagnose(
    model: nn.Module,
    clients: Sequence[Any],
    loss: Loss,
    *,
    batch_size: int,
    seed: int = 0,
    collate: Callable[[list[Any]], Any] = default_collate,
    options: DiagnosisOptions | None = None,
    observe: Callable[[str], None] = lambda _: None,
    progress: bool = False,
) -> Diagnosis:
    """Measure a model's loss and its clients' data, and recommend how to train on them.

    It descends along the gradient from the model's current parameters and measures gradient norms,
    noise, differences between clients and curvature on the way. Then it compares step sizes,
    clipping, corrections and numbers of local steps in short test runs. The model is left as it
    was. The short runs compare training losses only: check a test score of your own.

    Args:
        model: The model, in the state from which training would start.
        clients: Each client's data, as for `fit`; 2 clients or more.
        loss: Mean loss of the model on a batch, as for `fit`.
        batch_size: Examples per batch; each client needs 2 batches or more.
        seed: Seed of the measuring batches.
        collate: Makes a batch of a list of examples, as for `fit`.
        options: How much to measure; by default what suits a small network.
        observe: Called with a line of text before each step.
        progress: Show what is being measured on a terminal and in notebooks; elsewhere, log lines
            of the logger "episode".

    Returns:
        Measurements, estimates and a verdict; `print` it to read the verdict.

    Raises:
        EpisodeError: There are too few clients or batches, the loss is not finite, or the gradient
            at the start is nearly zero.

    Example:
        >>> import torch
        >>> import episode
        >>> from episode.diagnosis.options import DiagnosisOptions
        >>> x = torch.linspace(-1, 2, 20)[:, None]
        >>> silos = [(x, 2 * x), (x + 1, x)]
        >>> found = episode.diagnose(
        ...     torch.nn.Linear(1, 1),
        ...     silos,
        ...     loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        ...     batch_size=10,
        ...     options=DiagnosisOptions(steps=6, points=4, local_steps=4, rehearsal=16),
        ... )
        >>> found.verdict.algorithm in episode.ALGORITHMS
        True
        >>> found.verdict.eta > 0
        True
    """
    task = NeuralTask(model, clients, loss, batch_size=batch_size, seed=seed, collate=collate)
    title = type(model).__name__
    with shown_steps(f"Diagnosis of {title}") if progress else nullcontext(observe) as show:
        return diagnose_task(task, title=title, seed=seed, options=options, observe=show)


def diagnose_task(
    task: Task,
    *,
    title: str,
    seed: int = 0,
    start: State | None = None,
    options: DiagnosisOptions | None = None,
    observe: Callable[[str], None] = lambda _: None,
) -> Diagnosis:
    """Diagnose any task, from its initial state or from another one."""
    began = time.perf_counter()
    options = options or DiagnosisOptions()
    start = start or task.initial()
    with _one_thread():
        measurer = Measurer(task, options, seed)
        path = descend(measurer, start, options, observe)
        estimates = estimate(path.points, path.losses, seed)
        threshold = first_threshold(path.points, estimates)
        runner = ShortRunner(task, measurer, start, threshold, options.rehearsal, observe)
        runs = try_settings(runner, first_eta(path.step_sizes, path.losses), options.local_steps)
    return Diagnosis(
        title=title,
        options=options,
        seed=seed,
        clients=task.num_clients,
        parameters=start[0].numel(),
        points=path.points,
        step_sizes=path.step_sizes,
        short_runs=runs,
        estimates=estimates,
        verdict=reach_verdict(path.points, estimates, path.step_sizes, runs),
        notes=_notes(path, options),
        seconds=time.perf_counter() - began,
    )


def _notes(path: Trajectory, options: DiagnosisOptions) -> tuple[str, ...]:
    notes = []
    if path.hessian_error:
        notes.append(f"{path.hessian_error} Hessians are left out; gradients gave the curvature.")
    sought = [c for p in path.points for c in p.hessian]
    if sought:
        notes.append(
            f"{sum(c.converged for c in sought)} of {len(sought)} Hessian norms converged to a "
            f"relative error of {options.tolerance:g} in {options.iterations} power iterations."
        )
    steps = len(path.step_sizes)
    if steps < options.steps:
        notes.append(f"Gradient descent ended after {steps} steps: f fell no further.")
    return tuple(notes)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Use one torch thread, so that rounding does not depend on the number of cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
