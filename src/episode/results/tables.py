"""Tables of text cells, which can be printed, or saved as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table as RichTable
from rich.text import Text

from episode.results.plain_text import printable
from episode.results.store import write_text

_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
     "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\textasciitilde{}", "–": "--", "—": "---",
     "…": r"\dots{}", "’": "'", "\u0304": "",  # LaTeX puts accents first, so x̄ becomes x
     **{sign: rf"\ensuremath{{\{name}}}" for sign, name in {
         "α": "alpha", "β": "beta", "γ": "gamma", "Γ": "Gamma", "Δ": "Delta", "ε": "epsilon",
         "η": "eta", "κ": "kappa", "λ": "lambda", "μ": "mu", "ρ": "rho", "σ": "sigma",
         "Ω": "Omega", "∇": "nabla", "∞": "infty", "√": "surd", "±": "pm", "×": "times",
         "·": "cdot", "≤": "leq", "≥": "geq", "≪": "ll", "≲": "lesssim", "≈": "approx",
         "‖": "|", "→": "to", "∈": "in"}.items()},
     **{sign: rf"\ensuremath{{^{{{digit}}}}}" for sign, digit in zip(
         "⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ᐟ", [*"0123456789-+/"], strict=True)},
     **{sign: rf"\ensuremath{{_{{{digit}}}}}" for sign, digit in zip(
         "₀₁₂₃₄₅₆₇₈₉", [*"0123456789"], strict=True)}}
)  # fmt: skip
"""LaTeX for special characters, valid in text and in maths; `≲` needs amssymb."""


@dataclass(frozen=True)
class CsvData:
    """Contents of a CSV file for programs: one unrounded value in each cell."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Table:
    """A table of text cells: print it with rich, or save it as Markdown, LaTeX and CSV."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    left: int = 1
    """Number of leading columns that hold words and are aligned left; the others hold numbers."""
    csv_data: CsvData | None = None
    """Contents of the CSV file if the cells themselves are rounded or have units."""
    gap: int = 2
    """Spaces between columns; a table that is too wide for the terminal has one."""

    def markdown(self) -> str:
        """Return the table in Markdown, without its title."""
        marks = ["---" if i < self.left else "---:" for i in range(len(self.columns))]
        lines = [_markdown(self.columns), f"|{'|'.join(marks)}|", *map(_markdown, self.rows)]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """Return the table in LaTeX with the rules of the package booktabs."""
        form = "l" * self.left + "r" * (len(self.columns) - self.left)
        lines = [rf"\begin{{tabular}}{{@{{}}{form}@{{}}}}", r"\toprule", _latex(self.columns)]
        lines += [r"\midrule", *map(_latex, self.rows), r"\bottomrule", r"\end{tabular}"]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        """Return the table as CSV."""
        text = io.StringIO()
        content = self.csv_data or self
        csv.writer(text, lineterminator="\n").writerows([content.columns, *content.rows])
        return text.getvalue()

    def write(self, stem: Path) -> None:
        """Write stem.md, stem.tex and stem.csv."""
        texts = {".md": self.markdown(), ".tex": self.latex(), ".csv": self.csv()}
        for suffix, text in texts.items():
            write_text(stem.with_name(stem.name + suffix), text)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Print the table; on a narrow terminal words are wrapped, but numbers are not."""
        heads, gap = list(self.columns), self.gap
        only_words = self.left == len(self.columns)
        if not only_words and self._width(heads, gap) > options.max_width:
            heads, gap = [head.replace("_", "\n") for head in heads], 1
        fits = self._width(heads, gap) <= options.max_width
        table = RichTable(
            title=Text(printable(self.title)) if self.title else None,
            title_justify="left",
            box=None,
            padding=(0, gap, 0, 0),
        )
        for i, head in enumerate(heads):
            words = i < self.left
            wraps = words and (i > 0 if only_words else not fits)
            table.add_column(
                Text(printable(head)),
                no_wrap=not wraps,
                overflow="fold",
                justify="left" if words else "right",
            )
        for row in self.rows:  # as Text, or rich would take [urgent] for markup
            table.add_row(*(Text(printable(cell, one_line=True)) for cell in row))
        yield table

    def _width(self, heads: Sequence[str], gap: int) -> int:
        """Return the width of the printed table if nothing is wrapped."""
        widths = [max(map(len, head.split("\n"))) for head in heads]
        columns = zip(widths, *(map(len, row) for row in self.rows), strict=True)
        return sum(max(column) + gap for column in columns)


def counted(number: int, noun: str) -> str:
    """Return `1 run` or `2 runs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _markdown(row: Sequence[str]) -> str:
    cells = [printable(cell, one_line=True).replace("|", r"\|") for cell in row]
    return f"| {' | '.join(cells)} |"


def _latex(row: Sequence[str]) -> str:
    return " & ".join(printable(cell, one_line=True).translate(_LATEX) for cell in row) + r" \\"
