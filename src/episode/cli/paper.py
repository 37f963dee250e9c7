"""The command `reproduce`: repeat the paper's tables and figures."""

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
    judged,
    out,
    speaks,
    stoppable,
    strict,
)
from episode.errors import ClientError, EpisodeError, unknown

if TYPE_CHECKING:
    from episode.paper import MadeRecipe, Recipe, RecipeContext
    from episode.runs.config import Experiment


def register(app: typer.Typer) -> None:
    """Add this command to the command line."""
    app.command(epilog="Example: episode reproduce synthetic complexity")(reproduce)


class ScaleName(StrEnum):
    """How large a reproduction is."""

    smoke = "smoke"
    laptop = "laptop"
    paper = "paper"


def reproduce(
    recipes: Annotated[
        list[str] | None, typer.Argument(help="Names of recipes; without any, list them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Make all recipes.")] = False,
    scale: Annotated[
        ScaleName,
        typer.Option(
            help="smoke: seconds, on made-up data; laptop: minutes on two cores, with smaller "
            "models; paper: the paper's own settings, for a cluster."
        ),
    ] = ScaleName.smoke,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Official files: snli=FOLDER, glove=FILE, …; else those fetched before."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Runs for each row of a table.")] = 1,
    settings: Settings = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where to write.", show_default="runs/reproduce-SCALE")
    ] = None,
    tune: Annotated[
        bool,
        typer.Option(
            "--tune",
            help="First choose the learning rate η and the clipping parameter γ as the paper did, "
            "by the validation accuracy of the algorithm CELGC.",
        ),
    ] = False,
    tuned: Annotated[
        list[Path] | None,
        typer.Option(help="Use η and γ of this study by `episode tune`; may be repeated."),
    ] = None,
    jobs: Jobs = None,
    dry_run: Annotated[bool, typer.Option(help="Print each run's command, run nothing.")] = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Repeat the paper's tables and figures, and judge its claims.

    Each recipe writes its figure (PNG, PDF), its table (Markdown, LaTeX, CSV) with the paper's own
    numbers, and a verdict on each claim: holds, does not hold, or not testable at this scale.
    Existing runs are used again. To spread the clients of each run over several processes, start
    torchrun -m episode reproduce.
    """
    from episode.paper import RECIPES, MadeRecipe, RecipeContext, make, recipe, write_index
    from episode.paper.tuning import with_studies

    chosen = list(RECIPES.values()) if everything else [recipe(n) for n in recipes or []]
    if not chosen:
        for entry in RECIPES.values():
            out.print(f"{entry.name:<20} {entry.title} [{entry.place}]")
        return
    folder = folder or Path(f"runs/reproduce-{scale.value}")
    files = dict(map(_dataset_and_path, data or []))
    context = RecipeContext(scale.value, folder, files, seeds, settings or [])
    context = with_studies(context, chosen, tuned or [])
    missing = {r.name: r.missing(context) for r in chosen}
    able = [r for r in chosen if not missing[r.name]]
    if tune and dry_run:
        raise EpisodeError(
            "The runs depend on what --tune finds, so --dry-run cannot list them: tune first, or "
            "give a study with --tuned."
        )
    if tune:
        context = _tune_first(context, able, quiet)
    wanted = {e.id: e for r in able for e in r.experiments(context)}  # recipes share runs
    if not wanted and able == chosen:
        _refuse(chosen, {"--set": settings, "--seeds": seeds > 1, "--tune": tune, "--jobs": jobs})
    if dry_run:
        for e in wanted.values():
            out.print(_command(e, context.runs / e.name))
        for name in (r.name for r in able if not r.experiments(context)):
            err.print(f"{name} needs no runs: this command computes it by itself.")
        for name in (r.name for r in chosen if r not in able):
            err.print(f"{name} cannot be made: {missing[name]}")
    else:
        if wanted:
            _play(list(wanted.values()), context.runs, jobs, quiet)
        if not speaks():
            return
        made = [MadeRecipe(r, (), missing[r.name]) if missing[r.name] else make(r, context)
                for r in chosen]  # fmt: skip
        write_index(context, made)
        _print_made(folder, made, as_json)
    if len(able) < len(chosen):
        raise typer.Exit(2)


def _refuse(recipes: Sequence[Recipe], options: Mapping[str, object]) -> None:
    """Refuse options for runs if no recipe has runs: they would change nothing."""
    if unused := [option for option, given in options.items() if given]:
        raise EpisodeError(
            f"{unused[0]} would change nothing, as no runs are needed for "
            f"{' and '.join(r.name for r in recipes)}: leave it out."
        )


def _tune_first(context: RecipeContext, recipes: Sequence[Recipe], quiet: bool) -> RecipeContext:
    from episode.paper.tuning import tune_first

    with stoppable(command_line()) as stop:
        return tune_first(context, recipes, None if quiet else say_trial, stop)


def _play(experiments: list[Experiment], folder: Path, jobs: int | None, quiet: bool) -> None:
    """Play the runs that are missing; one that fails is an error."""
    from episode.studies.sweep import SweepOptions, sweep

    silent = quiet or not speaks()
    with stoppable(command_line()) as stop, SweepDisplay(len(experiments), silent) as display:
        outcomes = sweep(experiments, SweepOptions(folder, jobs, False, stop), display)
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


def _print_made(folder: Path, made: Sequence[MadeRecipe], as_json: bool) -> None:
    if as_json:
        values = {m.recipe.name: {"missing": m.missing, "claims": [vars(c) for c in m.claims]}
                  for m in made}  # fmt: skip
        out.print_json(data=strict(values))
        return
    styles = {"holds": judged(True), "does not hold": judged(False)}
    for m in made:
        out.print(m.recipe.title, style="bold")
        for claim in m.claims:
            out.print(f"  {claim.verdict}:", end=" ", style=styles.get(claim.verdict))
            out.print(f"{claim.text}\n    {claim.evidence}")
        if m.missing:
            err.print(f"  Not made: {m.missing}")
    if not all(m.missing for m in made):
        out.print(f"Tables, figures and claims: {folder}/README.md")


def _dataset_and_path(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not equals:
        raise EpisodeError(f"--data {text!r} is not of the form dataset=path.")
    known = ("snli", "glove", "sentiment140", "cifar10", "imagenet")
    if name not in known:
        raise unknown("dataset", name, known)
    return name, path
