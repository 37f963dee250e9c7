"""The command line's recipes: `reproduce`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from episode.cli.progress import SweepDisplay, say_trial
from episode.cli.terminal import (
    AsJson,
    Jobs,
    Quiet,
    Settings,
    command_line,
    err,
    out,
    speaks,
    stoppable,
    strict,
)
from episode.errors import ClientError, EpisodeError, unknown

if TYPE_CHECKING:
    from episode.paper import Kitchen, Recipe, Served
    from episode.runs.config import Experiment


def register(app: typer.Typer) -> None:
    """Adds this command to the command line."""
    app.command(epilog="Example: episode reproduce synthetic complexity")(reproduce)


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
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="First choose η and γ as the paper did, on CELGC's validation."
        ),
    ] = False,
    tuned: Annotated[
        list[Path] | None,
        typer.Option(help="Use the η and γ of this study (episode tune); may be repeated."),
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
    from episode.paper import RECIPES, Kitchen, Served, index, recipe, serve
    from episode.paper.tuning import with_studies

    chosen = list(RECIPES.values()) if everything else [recipe(n) for n in recipes or []]
    if not chosen:
        for entry in RECIPES.values():
            out.print(f"{entry.name:<20} {entry.title} ({entry.place})", markup=False)
        return
    given = dict(_pair(text) for text in data or [])
    kitchen = Kitchen(
        scale.value, folder or Path(f"runs/reproduce-{scale.value}"), given, seeds, settings or []
    )
    kitchen = with_studies(kitchen, chosen, tuned or [])
    missing = {r.name: r.missing(kitchen) for r in chosen}
    able = [r for r in chosen if not missing[r.name]]
    if tune and dry_run:
        raise EpisodeError(
            "The runs depend on what --tune finds, so --dry-run cannot list them: tune first, or "
            "give a study with --tuned."
        )
    if tune:
        kitchen = _tuned_first(kitchen, able, quiet)
    wanted = {e.id: e for r in able for e in r.experiments(kitchen)}  # recipes share runs
    if not wanted and able == chosen:
        _refuse(chosen, {"--set": settings, "--seeds": seeds > 1, "--tune": tune, "--jobs": jobs})
    if dry_run:
        for experiment in wanted.values():
            out.print(_command(experiment, kitchen.runs / experiment.name), markup=False)
        for name in (r.name for r in able if not r.experiments(kitchen)):
            err.print(f"{name} needs no runs: it is computed by the command itself.", markup=False)
        for name in (r.name for r in chosen if r not in able):
            err.print(f"{name} cannot be made: {missing[name]}", markup=False)
    else:
        if wanted:
            _play(list(wanted.values()), kitchen.runs, jobs, quiet)
        if not speaks():
            return
        served = [
            serve(r, kitchen) if r in able else Served(r, missing=missing[r.name]) for r in chosen
        ]
        index(kitchen, served)
        _print_served(kitchen.folder, served, as_json)
    if len(able) < len(chosen):
        raise typer.Exit(2)


def _refuse(recipes: Sequence[Recipe], for_runs: Mapping[str, object]) -> None:
    """Says of recipes without runs that an option which is for runs would change nothing."""
    if unused := [option for option, given in for_runs.items() if given]:
        raise EpisodeError(
            f"{unused[0]} would change nothing, as no runs are needed for "
            f"{' and '.join(r.name for r in recipes)}: leave it out."
        )


def _tuned_first(kitchen: Kitchen, recipes: Sequence[Recipe], quiet: bool) -> Kitchen:
    from episode.paper.tuning import tune_first

    with stoppable(command_line()) as stop:
        return tune_first(kitchen, recipes, (lambda name, _: None) if quiet else say_trial, stop)


def _play(experiments: list[Experiment], folder: Path, jobs: int | None, quiet: bool) -> None:
    """Plays what is missing; a run that failed is an error."""
    from episode.studies.sweep import Orders, sweep

    hushed = quiet or not speaks()
    with stoppable(command_line()) as stop, SweepDisplay(len(experiments), hushed) as display:
        outcomes = sweep(experiments, Orders(folder, jobs, False, stop), display)
    failed = [f"{o.name}: {o.reason}" for o in outcomes if o.status == "failed"]
    if failed and speaks():
        raise ClientError(f"{len(failed)} of {len(outcomes)} runs failed, such as {failed[0]}")


def _command(experiment: Experiment, folder: Path) -> str:
    """Return the command that plays this experiment, with all of its settings."""
    from episode.results.groups import settings_of

    words = ["episode", "run", "--folder", str(folder), "--resume"]
    for key, value in settings_of(experiment.to_dict()).items():
        text = value if isinstance(value, str) else json.dumps(value)
        words += ["--set", f"{key}={text}"]
    return shlex.join(words)


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
    if not all(s.missing for s in served):
        out.print(f"Tables, figures and claims: {folder}/README.md", markup=False)


def _pair(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    known = ("snli", "glove", "sentiment140", "cifar10", "imagenet")
    if not equals:
        raise EpisodeError(f"--data {text!r} is not of the form dataset=path.")
    if name not in known:
        raise unknown("dataset", name, known)
    return name, path
