"""The command line's studies and recipes: `tune`, `reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from episode.cli_experiments import Jobs, Settings, command_line
from episode.display import SweepDisplay
from episode.errors import ClientError, EpisodeError, unknown
from episode.terminal import AsJson, Quiet, err, out, speaks, stoppable, strict

if TYPE_CHECKING:
    from episode.experiments.reproduce import Served
    from episode.experiments.study import Study
    from episode.experiments.tune import Trial


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
    """Adds these commands to the command line."""
    app.command(epilog="Example: episode tune --set budget.rounds=10 --folder runs/tune")(tune)
    app.command(epilog="Example: episode reproduce synthetic complexity")(reproduce)


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
    from episode.engines.meeting import under_torchrun
    from episode.experiments.search import paper_protocol, parse_space
    from episode.experiments.study import Study
    from episode.experiments.tune import Tuner
    from episode.experiments.values import apply_override, read_values

    if under_torchrun():
        raise EpisodeError(
            "A study is not spread by torchrun: start `episode tune` once per process that helps."
        )
    values = read_values(config) if config else {}
    for override in settings or []:
        apply_override(values, override)
    task = values.get("task", "digits")
    name = str(task.get("name", "digits") if isinstance(task, dict) else task)
    values["task"] = task if isinstance(task, dict) else {"name": name}
    space = parse_space(search or [], name)
    if not search and sampler is Samplers.tpe:
        raise EpisodeError(
            "TPE needs ranges: --search schedule.gamma=0.01..1 --search threshold=…."
        )
    values = values if search else paper_protocol(values)
    names = [n.strip() for n in per_algorithm.split(",")] if per_algorithm else [""]
    found: dict[str, Any] = {}
    for algorithm in names:
        if algorithm:
            rest = values.get("algorithm", {})
            rest = rest if isinstance(rest, dict) else {}
            values["algorithm"] = {**rest, "name": algorithm}
        study = Study(
            folder / algorithm, values, space, sampler.value, pruner.value, trials, seed, metric
        )
        label = study.base().algorithm.label
        with stoppable(command_line()) as stop:
            watch = (lambda name, _: None) if quiet else _say
            ended = Tuner(study, watch, stop).run()
        found[label] = [_as_dict(study, t) for t in ended]
        if not as_json:
            _print_study(study, ended, label)
    if as_json:
        out.print_json(data=strict(found))


def _say(name: str, experiment: Any) -> None:
    schedule = experiment.schedule
    err.print(
        f"{name}: {experiment.algorithm.label}, η = {schedule.eta:g}, γ = {schedule.gamma:g} ...",
        markup=False,
    )


def _as_dict(study: Study, trial: Trial) -> dict[str, Any]:
    metric, _ = study.judged_by()
    return {
        "point": trial.point,
        "status": trial.status,
        metric: trial.value,
        "folder": str(study.folder / "runs" / trial.experiment.name),
    }


def _print_study(study: Study, trials: list[Trial], label: str) -> None:
    from episode.results.sheets import Sheet

    metric, _ = study.judged_by()
    rows = [
        [
            *(f"{v:.4g}" if isinstance(v, float) else str(v) for v in t.point.values()),
            f"{t.experiment.schedule.eta:.4g}",
            f"{t.experiment.schedule.gamma:.4g}",
            "–" if t.value is None else f"{t.value:.4f}",
            "" if t.status == "complete" else t.status,
        ]
        for t in trials
    ]
    columns = [*study.space, "η", "γ", metric, ""]
    sheet = Sheet(f"{label}: {len(trials)} trials, the best first", columns, rows, left=0)
    out.print(sheet.terminal())
    sheet.write(study.folder / "trials")
    if not trials or trials[0].status != "complete":
        out.print("No trial came to an end with a figure: search elsewhere.")
        return
    chosen = trials[0].experiment.schedule
    best = study.folder / "best.toml"
    out.print(f"Best: {best}   (episode run {best})", markup=False)
    out.print(
        f"For other algorithms: --set schedule.eta={chosen.eta:g} "
        f"--set schedule.gamma={chosen.gamma:g}",
        markup=False,
    )


class Scales(StrEnum):
    """How large a reproduction is."""

    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


def reproduce(
    recipes: Annotated[
        list[str] | None, typer.Argument(help="Names of recipes; without any, they are listed.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All recipes.")] = False,
    scale: Annotated[
        Scales, typer.Option(help="Seconds on made-up data, minutes on two cores, or a cluster.")
    ] = Scales.smoke,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Official files: snli=FOLDER, glove=FILE, …; else what was fetched."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs per cell of a table.")] = 1,
    settings: Settings = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where all goes.", show_default="runs/reproduce-SCALE")
    ] = None,
    jobs: Jobs = None,
    dry_run: Annotated[bool, typer.Option(help="Print the runs' commands, run nothing.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Repeat the paper's tables and figures, and judge its claims.

    Each recipe writes its figure (PNG, PDF) and table (Markdown, LaTeX, CSV) beside the paper's own
    numbers, and the paper's claims, each marked holds, does not hold, or not testable at this
    scale. Runs that are there already are used; torchrun -m episode reproduce spreads clients.
    """
    from episode.experiments.extras import command_of
    from episode.experiments.reproduce import RECIPES, Kitchen, Served, index, recipe, serve
    from episode.experiments.sweep import Orders, sweep

    chosen = list(RECIPES.values()) if everything else [recipe(n) for n in recipes or []]
    if not chosen:
        for entry in RECIPES.values():
            out.print(f"{entry.name:<20} {entry.title} ({entry.place})", markup=False)
        return
    given = dict(_pair(text) for text in data or [])
    kitchen = Kitchen(
        scale.value, folder or Path(f"runs/reproduce-{scale.value}"), given, seeds, settings or []
    )
    missing = {r.name: r.missing(kitchen) for r in chosen}
    wanted = {
        e.id: e for r in chosen if not missing[r.name] for e in r.experiments(kitchen)
    }  # recipes share runs
    if dry_run:
        for experiment in wanted.values():
            target = kitchen.runs / experiment.name
            words = f"{command_of(experiment.to_dict())} --folder {target} --resume"
            out.print(words, markup=False)
        return
    failed: list[str] = []
    if wanted:
        hushed = quiet or not speaks()
        with stoppable(command_line()) as stop, SweepDisplay(len(wanted), hushed) as display:
            outcomes = sweep(
                list(wanted.values()), Orders(kitchen.runs, jobs, False, stop), display
            )
        failed = [f"{o.name}: {o.reason}" for o in outcomes if o.status == "failed"]
    if not speaks():
        return
    if failed:
        raise ClientError(f"{len(failed)} of {len(outcomes)} runs failed, such as {failed[0]}")
    served = [
        Served(r, missing=missing[r.name]) if missing[r.name] else serve(r, kitchen) for r in chosen
    ]
    index(kitchen, served)
    _print_served(kitchen.folder, served, as_json)
    if any(s.missing for s in served):
        raise typer.Exit(2)


def _print_served(folder: Path, served: Sequence[Served], as_json: bool) -> None:
    if as_json:
        values = {s.recipe.name: {"missing": s.missing, "claims": [vars(c) for c in s.claims]}
                  for s in served}  # fmt: skip
        out.print_json(data=strict(values))
        return
    for s in served:
        out.print(f"[bold]{s.recipe.title}[/bold]")
        for claim in s.claims:
            mark = {"holds": "[green]holds[/green]", "does not hold": "[red]does not hold[/red]"}
            out.print(f"  {mark.get(claim.verdict, claim.verdict)}:", end=" ")
            out.print(f"{claim.text} ({claim.figures})", markup=False)
        if s.missing:
            err.print(f"  Not made: {s.missing}", markup=False)
    out.print(f"Tables, figures and claims: {folder}/README.md", markup=False)


def _pair(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    known = ("snli", "glove", "sentiment140", "cifar10", "imagenet")
    if not equals:
        raise EpisodeError(f"--data {text!r} is not of the form dataset=path.")
    if name not in known:
        raise unknown("dataset", name, known)
    return name, path
