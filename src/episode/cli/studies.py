"""The command `tune`: choose settings on validation data."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from episode.cli.progress import say_trial
from episode.cli.terminal import AsJson, Quiet, Settings, command_line, err, out, stoppable, strict
from episode.errors import EpisodeError

if TYPE_CHECKING:
    from episode.studies.study import Study
    from episode.studies.tune import Trial


class SamplerName(StrEnum):
    """How the next point of the search space is chosen."""

    grid = "grid"
    tpe = "tpe"


class PrunerName(StrEnum):
    """Whether trials that fall behind are stopped."""

    none = "none"
    median = "median"
    hyperband = "hyperband"


def register(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command(epilog="Example: episode tune --set budget.rounds=10 --folder runs/tune")(tune)


def tune(
    config: Annotated[Path | None, typer.Argument(help="A TOML file with settings.")] = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting to search, as a list key=a,b,c or (for tpe) a range key=low..high; "
            "may be repeated. schedule.eta is the learning rate η, schedule.gamma the clipping "
            "parameter γ, and threshold is γ/η: gradients with a larger norm are clipped."
        ),
    ] = None,
    settings: Settings = None,
    sampler: Annotated[
        SamplerName, typer.Option(help="grid tries all points; tpe lets Optuna choose them.")
    ] = SamplerName.grid,
    pruner: Annotated[
        PrunerName, typer.Option(help="How to detect and stop trials that fall behind.")
    ] = PrunerName.none,
    trials: Annotated[
        int | None, typer.Option(min=1, help="Number of trials, for tpe.", show_default="20")
    ] = None,
    per_algorithm: Annotated[
        str | None,
        typer.Option(
            help="Algorithms (celgc,episode,…) to tune separately, for a fair comparison."
        ),
    ] = None,
    metric: Annotated[
        str | None,
        typer.Option(help="Metric to compare.", show_default="validation accuracy, or value of f"),
    ] = None,
    folder: Annotated[Path, typer.Option(help="Where the study is kept.")] = Path("runs/tune"),
    seed: Annotated[int, typer.Option(help="Random seed of the sampler.")] = 0,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Choose the learning rate η and clipping parameter γ, or other settings, on validation data.

    Without --search, this tunes as the paper did: it tries the paper's values of γ and γ/η for the
    algorithm CELGC, with I = 4 local steps per round and clients whose data are s = 50% similar.
    The paper then uses the best pair for all algorithms. The best config is written to best.toml.

    Start the same command again to resume a study, or to help while another process works on it.
    """
    from episode.engines.rendezvous import under_torchrun
    from episode.studies.search_space import paper_protocol, parse_space
    from episode.studies.study import Study
    from episode.studies.tune import StudyRunner

    if under_torchrun():
        raise EpisodeError("torchrun cannot spread a study: start `episode tune` once per process.")
    values = _values(config, settings or [])
    space = parse_space(search or [], values["task"].get("name", "digits"))
    if not search and sampler is SamplerName.tpe:
        raise EpisodeError(
            "TPE needs ranges: --search schedule.gamma=0.01..1 --search threshold=…."
        )
    values = values if search else paper_protocol(values)
    if trials is not None and sampler is SamplerName.grid:
        raise EpisodeError("--trials is for --sampler tpe: a grid always tries all its points.")
    found: dict[str, Any] = {}
    for algorithm in _algorithms(per_algorithm) if per_algorithm else [""]:
        if algorithm:
            values["algorithm"] = {**values["algorithm"], "name": algorithm}
        study = Study(
            folder / algorithm.rpartition(":")[2],
            values,
            space,
            sampler.value,
            pruner.value,
            trials,
            seed,
            metric,
        )
        label = study.base().algorithm.label
        with stoppable(command_line()) as stop:
            runner = StudyRunner(study, None if quiet else say_trial, stop)
            ended = runner.run()
        found[label] = [_as_dict(study, t) for t in ended]
        if not as_json:
            _print_study(study, ended, label, alone=not per_algorithm)
        if count := runner.running_elsewhere:
            err.print(f"Trials that other processes are still playing: {count}.")
    if as_json:
        out.print_json(data=strict(found))
    if not all(each and each[0]["status"] == "complete" for each in found.values()):
        raise typer.Exit(1)


def _algorithms(listed: str) -> list[str]:
    """Split a list of algorithms and check all names, before any of them is tuned."""
    from episode.core.algorithm import Algorithm

    names = list(dict.fromkeys(n.strip() for n in listed.split(",") if n.strip()))
    for name in names:
        Algorithm.named(name)
    return names


def _values(config: Path | None, settings: list[str]) -> dict[str, Any]:
    """Read the config's values, with the task and the algorithm as sections."""
    from episode.runs.config_values import read_values
    from episode.studies.from_python import as_sections

    return as_sections(read_values(config, settings))


def _as_dict(study: Study, trial: Trial) -> dict[str, Any]:
    metric, _ = study.criterion()
    return {
        "point": trial.point,
        "status": trial.status,
        metric: trial.value,
        "folder": str(study.folder / "runs" / trial.experiment.name),
    }


def _metric_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}" if abs(value) < 1e6 else f"{value:.4g}"


def _setting_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _print_study(study: Study, trials: list[Trial], label: str, alone: bool) -> None:
    from episode.results.tables import CsvData, Table, counted

    metric, _ = study.criterion()
    derived = [k for k in ("eta", "gamma") if f"schedule.{k}" not in study.space]
    derived = derived if "threshold" in study.space else []  # η or γ, which follows from γ/η
    columns = [*study.space, *(f"schedule.{k}" for k in derived), metric, "status"]
    schedules = [vars(t.experiment.schedule) for t in trials]
    data = [
        [*t.point.values(), *(s[k] for k in derived), t.value, t.status]
        for t, s in zip(trials, schedules, strict=True)
    ]
    rows = [[*map(_setting_text, row[:-2]), _metric_text(row[-2]), row[-1]] for row in data]
    title = f"{label}: {counted(len(trials), 'trial')}, the best first"
    table = Table(title, columns, rows, left=0, csv_data=CsvData(columns, data))
    out.print(table)
    table.write(study.folder / "trials")
    if not trials or trials[0].status != "complete":
        out.print("No trial finished with a finite metric: widen the search space.")
        return
    chosen = trials[0].experiment.schedule
    best = study.folder / "best.toml"
    out.print(f"Best config: {best}   Run it: episode run {best}")
    if alone and {"threshold", "schedule.eta", "schedule.gamma"} & study.space.keys():
        out.print(
            f"For other algorithms: --set schedule.eta={chosen.eta:g} "
            f"--set schedule.gamma={chosen.gamma:g}",
        )
