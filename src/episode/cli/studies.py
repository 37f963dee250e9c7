"""The command line's studies: `tune`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from episode.cli.progress import say_trial
from episode.cli.terminal import AsJson, Quiet, Settings, command_line, err, out, stoppable, strict
from episode.errors import EpisodeError, unknown

if TYPE_CHECKING:
    from episode.studies.study import Study
    from episode.studies.tune import Trial


class Samplers(StrEnum):
    """How the next point is chosen."""

    grid = "grid"
    tpe = "tpe"


class Pruners(StrEnum):
    """Whether trials that fall behind are stopped."""

    none = "none"
    median = "median"
    hyperband = "hyperband"


def register(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    app.command(epilog="Example: episode tune --set budget.rounds=10 --folder runs/tune")(tune)


def tune(
    config: Annotated[Path | None, typer.Argument(help="A TOML file.")] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(help="What to search: key=a,b,c or key=low..high; `threshold` is γ/η."),
    ] = None,
    settings: Settings = None,
    sampler: Annotated[Samplers, typer.Option(help="All points, or Optuna's TPE.")] = Samplers.grid,
    pruner: Annotated[Pruners, typer.Option(help="Stop trials that fall behind.")] = Pruners.none,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Trials in all, for tpe.", show_default="20")
    ] = None,
    per_algorithm: Annotated[
        str | None,
        typer.Option(help="Tune each of these (celgc,episode,…) for itself: a fairer comparison."),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="The figure to compare.", show_default="validation accuracy, or f"),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where the study is kept.")] = Path("runs/tune"),
    seed: Annotated[int, typer.Option(help="The sampler's.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Choose η and γ (or anything else) on the validation split.

    Without --search it is the paper's protocol: its γ x γ/η grid, for CELGC at I = 4 and s = 50,
    to be used for everything else. The best config goes to best.toml. A study that was stopped
    goes on, and more processes join in: start the same command again.
    """
    from episode.engines.rendezvous import under_torchrun
    from episode.results.tables import counted
    from episode.studies.search_space import paper_protocol, parse_space
    from episode.studies.study import Study
    from episode.studies.tune import Tuner

    if under_torchrun():
        raise EpisodeError(
            "A study is not spread by torchrun: start `episode tune` once per process that helps."
        )
    values = _values(config, settings or [])
    space = parse_space(search or [], values["task"].get("name", "digits"))
    if not search and sampler is Samplers.tpe:
        raise EpisodeError(
            "TPE needs ranges: --search schedule.gamma=0.01..1 --search threshold=…."
        )
    values = values if search else paper_protocol(values)
    if trials is not None and sampler is Samplers.grid:
        raise EpisodeError("--trials is for --sampler tpe: the grid has all its points.")
    names = _algorithms(per_algorithm) if per_algorithm else [""]
    found: dict[str, Any] = {}
    all_have_a_best = True
    for algorithm in names:
        if algorithm:
            values["algorithm"] = _named(values.get("algorithm"), algorithm)
        study = Study(
            folder / algorithm, values, space, sampler.value, pruner.value, trials, seed, metric
        )
        label = study.base().algorithm.label
        with stoppable(command_line()) as stop:
            watch = (lambda name, _: None) if quiet else say_trial
            tuner = Tuner(study, watch, stop)
            ended = tuner.run()
        found[label] = [_as_dict(study, t) for t in ended]
        all_have_a_best = all_have_a_best and bool(ended) and ended[0].status == "complete"
        if not as_json:
            _print_study(study, ended, label, alone=not per_algorithm)
        if tuner.elsewhere:
            err.print(f"At work in other processes: {counted(tuner.elsewhere, 'trial')} more.")
    if as_json:
        out.print_json(data=strict(found))
    if not all_have_a_best:
        raise typer.Exit(1)


def _algorithms(listed: str) -> list[str]:
    """Names that are there, before any of them is tuned."""
    from episode.core.algorithm import ALGORITHMS

    names = list(dict.fromkeys(n.strip() for n in listed.split(",") if n.strip()))
    for name in names:
        if name not in ALGORITHMS:
            raise unknown("algorithm", name, ALGORITHMS)
    return names


def _values(config: Path | None, settings: list[str]) -> dict[str, Any]:
    """The config's values, its task as a section."""
    from episode.runs.config_values import apply_override, read_values

    values = read_values(config) if config else {}
    for override in settings:
        apply_override(values, override)
    task = values.get("task", "digits")
    values["task"] = task if isinstance(task, dict) else {"name": str(task)}
    return values


def _named(algorithm: Any, name: str) -> dict[str, Any]:
    """The algorithm's section with another name, and its options."""
    return {**(algorithm if isinstance(algorithm, dict) else {}), "name": name}


def _as_dict(study: Study, trial: Trial) -> dict[str, Any]:
    metric, _ = study.judged_by()
    return {
        "point": trial.point,
        "status": trial.status,
        metric: trial.value,
        "folder": str(study.folder / "runs" / trial.experiment.name),
    }


def _figure(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_study(study: Study, trials: list[Trial], label: str, alone: bool) -> None:
    from episode.results.tables import CsvData, Table, counted

    metric, _ = study.judged_by()
    given = [k for k in ("eta", "gamma") if f"schedule.{k}" not in study.space]
    given = given if "threshold" in study.space else []  # what γ/η comes to
    columns = [*study.space, *(f"schedule.{k}" for k in given), metric, "status"]
    schedules = [vars(t.experiment.schedule) for t in trials]
    data = [
        [*t.point.values(), *(s[k] for k in given), t.value, t.status]
        for t, s in zip(trials, schedules, strict=True)
    ]
    rows = [[*map(_shown, row[:-2]), _figure(row[-2]), row[-1]] for row in data]
    title = f"{label}: {counted(len(trials), 'trial')}, the best first"
    table = Table(title, columns, rows, left=0, csv_data=CsvData(columns, data))
    out.print(table)
    table.write(study.folder / "trials")
    if not trials or trials[0].status != "complete":
        out.print("No trial came to an end with a figure: search elsewhere.")
        return
    chosen = trials[0].experiment.schedule
    best = study.folder / "best.toml"
    out.print(f"Best: {best}   (episode run {best})", markup=False)
    if alone and {"threshold", "schedule.eta", "schedule.gamma"} & study.space.keys():
        out.print(
            f"For other algorithms: --set schedule.eta={chosen.eta:g} "
            f"--set schedule.gamma={chosen.gamma:g}",
            markup=False,
        )
