"""Recipes for every table and figure of the paper: runs, tables beside the paper's, and claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from episode.errors import unknown
from episode.paper.cifar10 import Cifar10
from episode.paper.complexity import Complexity
from episode.paper.digits import Digits
from episode.paper.imagenet import ImageNet
from episode.paper.recipe import JudgedClaim, Recipe, RecipeContext, RecipeOutput
from episode.paper.sentiment140 import Sentiment140Steps, Sentiment140Time
from episode.paper.snli import SnliEffects
from episode.paper.snli_ablation import SnliAblation
from episode.paper.snli_time import SnliTime
from episode.paper.synthetic import Synthetic
from episode.results.curves import draw_panels
from episode.results.store import dumps, write_text
from episode.results.tables import Table

__all__ = ["RECIPES", "MadeRecipe", "Recipe", "RecipeContext", "make", "recipe", "write_index"]

RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        Complexity(), Synthetic(), SnliEffects(), SnliTime(), SnliAblation(), Cifar10(),
        ImageNet(), Sentiment140Steps(), Sentiment140Time(), Digits(),
    )
}  # fmt: skip


@dataclass(frozen=True)
class MadeRecipe:
    """The judged claims of a recipe, or why it could not be made."""

    recipe: Recipe
    claims: Sequence[JudgedClaim] = ()
    missing: str = ""


def recipe(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]


def make(chosen: Recipe, context: RecipeContext) -> MadeRecipe:
    """Write the figures, tables and claims of a recipe whose runs have ended."""
    output = chosen.output(context)
    folder = context.folder / chosen.name
    for name, rows in output.figures.items():
        draw_panels(rows, folder / name)
    for name, table in output.tables.items():
        table.write(folder / name)
    _claims_table(output.claims).write(folder / "claims")
    write_text(folder / "claims.json", dumps([vars(c) for c in output.claims], indent=2) + "\n")
    write_text(folder / "README.md", _page(chosen, context, output))
    return MadeRecipe(chosen, output.claims)


def write_index(context: RecipeContext, made: Sequence[MadeRecipe]) -> None:
    """Write one page about all recipes made now or earlier, and why others could not be made."""
    lines = [f"# The paper's tables and figures, scale `{context.scale}`", ""]
    now = {m.recipe.name: m for m in made}
    for name, entry in RECIPES.items():
        earlier = context.folder / name / "claims.md"
        if name in now and now[name].missing:
            text = f"Not made: {now[name].missing}"
        elif earlier.exists():
            text = earlier.read_text()
        else:
            continue
        was_made = (context.folder / name / "README.md").exists()
        title = f"[{entry.title}]({name}/README.md)" if was_made else entry.title
        lines += [f"## {title}", "", f"{entry.place}.", "", text, ""]
    write_text(context.folder / "README.md", "\n".join(lines).rstrip() + "\n")


def _claims_table(claims: Sequence[JudgedClaim]) -> Table:
    rows = [[c.text, c.verdict, c.evidence] for c in claims]
    return Table("", ["Claim", "Verdict", "Evidence"], rows, left=3)


def _page(chosen: Recipe, context: RecipeContext, output: RecipeOutput) -> str:
    lines = [f"# {chosen.title}", "", f"{chosen.place}; scale `{context.scale}`.", ""]
    lines += [f"{note}\n" for note in output.notes]
    lines += [f"![{name}]({name}.png)\n" for name in output.figures]
    for table in output.tables.values():
        lines += [table.markdown(), ""]
    lines += ["## Claims", "", _claims_table(output.claims).markdown()]
    return "\n".join(lines).rstrip() + "\n"
