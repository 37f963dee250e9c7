"""Recipes for every table and figure of the paper: runs, tables beside the paper's, and claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from episode.errors import unknown
from episode.paper.complexity import Complexity
from episode.paper.others import (
    Cifar10,
    Digits,
    ImageNet,
    Sentiment140Steps,
    Sentiment140Time,
)  # fmt: skip
from episode.paper.recipe import Claim, Dish, Kitchen, Recipe, Scale
from episode.paper.snli import SnliAblation, SnliEffects
from episode.paper.snli_time import SnliTime
from episode.paper.synthetic import Synthetic
from episode.results.figures import draw_panels

from episode.results.store import dumps, write_text
from episode.results.text_tables import Sheet

__all__ = ["RECIPES", "Claim", "Kitchen", "Recipe", "Scale", "Served", "index", "recipe", "serve"]

RECIPES: dict[str, Recipe] = {
    r.name: r
    for r in (
        Complexity(), Synthetic(), SnliEffects(), SnliTime(), SnliAblation(), Cifar10(),
        ImageNet(), Sentiment140Steps(), Sentiment140Time(), Digits(),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Served:
    """A recipe that was made, or what keeps it from being made."""

    recipe: Recipe
    claims: Sequence[Claim] = ()
    missing: str = ""

    def counts(self) -> str:
        """How its claims fared, in a few words."""
        found = Counter(claim.verdict for claim in self.claims)
        return ", ".join(f"{n} {v}" for v, n in found.items())


def recipe(name: str) -> Recipe:
    """The recipe of this name."""
    if name not in RECIPES:
        raise unknown("recipe", name, RECIPES)
    return RECIPES[name]


def serve(chosen: Recipe, kitchen: Kitchen) -> Served:
    """Writes the recipe's figures, tables and claims, whose runs are there."""
    dish = chosen.serve(kitchen)
    folder = kitchen.folder / chosen.name
    for name, rows in dish.panels.items():
        draw_panels(rows, folder / name)
    for name, sheet in dish.sheets.items():
        sheet.write(folder / name)
    claims_sheet(dish.claims).write(folder / "claims")
    write_text(folder / "claims.json", dumps([vars(c) for c in dish.claims], indent=2) + "\n")
    write_text(folder / "README.md", _page(chosen, kitchen, dish))
    return Served(chosen, dish.claims)


def claims_sheet(claims: Sequence[Claim]) -> Sheet:
    """The paper's claims, each with its verdict and what it was judged on."""
    rows = [[c.text, c.verdict, c.figures] for c in claims]
    return Sheet("", ["Claim", "Verdict", "Judged on"], rows, left=3)


def index(kitchen: Kitchen, served: Sequence[Served]) -> None:
    """One page about all recipes that were made, and what the others lack."""
    lines = [f"# The paper's tables and figures, scale `{kitchen.scale}`", ""]
    now = {s.recipe.name: s for s in served}
    for name, entry in RECIPES.items():
        earlier = kitchen.folder / name / "claims.md"
        if name in now and now[name].missing:
            text = f"Not made: {now[name].missing}"
        elif name in now:
            text = claims_sheet(now[name].claims).markdown()
        elif earlier.exists():
            text = earlier.read_text()
        else:
            continue
        made = (kitchen.folder / name / "README.md").exists()
        title = f"[{entry.title}]({name}/README.md)" if made else entry.title
        lines += [f"## {title}", "", f"{entry.place}.", "", text, ""]
    write_text(kitchen.folder / "README.md", "\n".join(lines).rstrip() + "\n")


def _page(chosen: Recipe, kitchen: Kitchen, dish: Dish) -> str:
    lines = [f"# {chosen.title}", "", f"{chosen.place}; scale `{kitchen.scale}`.", ""]
    lines += [f"{note}\n" for note in dish.notes]
    lines += [f"![{name}]({name}.png)\n" for name in dish.panels]
    for sheet in dish.sheets.values():
        lines += [sheet.markdown(), ""]
    lines += ["## Claims", "", claims_sheet(dish.claims).markdown()]
    return "\n".join(lines).rstrip() + "\n"
