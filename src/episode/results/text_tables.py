"""Tables of text: for a terminal, and as Markdown, LaTeX and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from episode.results.groups import Group, metric_names, plain
from episode.results.store import write_text

_LATEX = str.maketrans(
    {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
     "\\": r"\textbackslash{}", "^": r"\^{}", "~": r"\textasciitilde{}", "–": "--", "—": "---",
     "…": r"\dots{}", "’": "'", "\u0304": "",  # x̄ is x: a bar cannot be put on what is past
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
"""Signs of our tables in LaTeX, in any mode; `≲` needs amssymb."""


@dataclass(frozen=True)
class Data:
    """What a program reads of a table: one value in each cell, to the last digit."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]


@dataclass(frozen=True)
class Sheet:
    """A table: its columns, and rows of as many texts."""

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    left: int = 1
    """How many columns stand on the left; the others are metrics, to the right."""
    data: Data | None = None
    """For the CSV file, where the texts are for people: rounded, with spreads and units."""

    def markdown(self) -> str:
        lines = ["| " + " | ".join(_cells(self.columns)) + " |"]
        marks = ["---" if i < self.left else "---:" for i in range(len(self.columns))]
        lines.append("|" + "|".join(marks) + "|")
        lines += ["| " + " | ".join(_cells(row)) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"

    def latex(self) -> str:
        """A booktabs table."""
        form = "l" * self.left + "r" * (len(self.columns) - self.left)
        lines = [rf"\begin{{tabular}}{{@{{}}{form}@{{}}}}", r"\toprule", _latex(self.columns)]
        lines += [r"\midrule", *map(_latex, self.rows), r"\bottomrule", r"\end{tabular}"]
        return "\n".join(lines) + "\n"

    def csv(self) -> str:
        text = io.StringIO()
        content = self.data or self
        csv.writer(text, lineterminator="\n").writerows([content.columns, *content.rows])
        return text.getvalue()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """For a person at a terminal: where it is narrow, words take several lines, not metrics."""
        heads, gap = list(self.columns), 2
        is_text = self.left == len(self.columns)
        if not is_text and self._width(heads, gap) > options.max_width:
            heads, gap = [head.replace("_", "\n") for head in heads], 1
        fits = self._width(heads, gap) <= options.max_width
        table = Table(
            title=self.title or None, title_justify="left", box=None, padding=(0, gap, 0, 0)
        )
        for i, head in enumerate(heads):
            is_word = i < self.left and (i > 0 if is_text else not fits)
            table.add_column(
                head,
                no_wrap=not is_word,
                overflow="fold",
                justify="left" if i < self.left else "right",
            )
        for row in self.rows:
            table.add_row(*row)
        yield table

    def _width(self, heads: Sequence[str], gap: int) -> int:
        """How wide it is, unless something is folded."""
        columns = zip(*[[max(map(len, h.split("\n"))) for h in heads],
                        *[map(len, row) for row in self.rows]], strict=True)  # fmt: skip
        return sum(max(column) + gap for column in columns)

    def write(self, stem: Path) -> list[Path]:
        """Writes stem.md, stem.tex and stem.csv."""
        texts = {".md": self.markdown(), ".tex": self.latex(), ".csv": self.csv()}
        paths = []
        for suffix, text in texts.items():
            paths.append(stem.with_name(stem.name + suffix))
            write_text(paths[-1], text)
        return paths


def counted(number: int, what: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def final_sheet(groups: Sequence[Group]) -> Sheet:
    """One row per group: what it is, its final figures over seeds, and what it cost.

    Without seconds, which differ between two runs of one config: so two sweeps end with one table.
    """
    names = _names(groups)[:4]
    keys = _settings_shown(groups)
    columns = ["algorithm", *keys, "seeds", *names, "status", "exchanges", "MB", "gradients"]
    rows = [
        [*_head(g, keys), *_metrics(g, names), g.status(), *_costs(g)[:3]] for g in groups
    ]  # fmt: skip
    return Sheet("", columns, rows, left=1 + len(keys), data=_final_data(groups, keys, names))


def _final_data(groups: Sequence[Group], keys: Sequence[str], names: Sequence[str]) -> Data:
    """The same as values: means over the finished seeds, and deviations (n - 1) beside them."""
    costs = ("exchanges", "bytes_up", "bytes_down", "gradients")
    spread = [column for n in names for column in (n, f"{n}_deviation")]
    rows = []
    for g in groups:
        metrics = [g.metric(n) for n in names]
        values = [v for f in metrics for v in ((f.mean, f.deviation) if f else (None, None))]
        settings = [g.label, *(g.settings[k] for k in keys), len(g.runs)]
        rows.append([*settings, *values, g.status(), *_mean_costs(g, costs)])
    return Data(["algorithm", *keys, "seeds", *spread, "status", *costs], rows)


def brief_sheet(groups: Sequence[Group], title: str = "") -> Sheet:
    """The same for a terminal of 80 columns: two metrics, and seconds."""
    names = _names(groups)[:2]
    keys = _settings_shown(groups)
    short = [key.rpartition(".")[2] for key in keys]
    odd = any(g.status() != "finished" for g in groups)
    columns = ["algorithm", *short, "seeds", *names, *(["status"] if odd else []), "exch.", "sec."]
    rows = []
    for g in groups:
        exchanges, _, _, seconds = _costs(g)
        status = [g.status()] if odd else []
        rows.append([*_head(g, keys), *_metrics(g, names), *status, exchanges, seconds])
    return Sheet(title, columns, rows, left=1 + len(keys))


def _names(groups: Sequence[Group]) -> list[str]:
    """The figures to show; where nothing was evaluated, the loss of the local steps."""
    return metric_names([r for g in groups for r in g.runs]) or ["loss"]


def _settings_shown(groups: Sequence[Group]) -> list[str]:
    keys = list(groups[0].settings) if groups else []
    return [k for k in keys if not (_named_apart(groups) and k.startswith("algorithm."))]


def _head(group: Group, keys: Sequence[str]) -> list[str]:
    return [group.label, *(_setting(group.settings[k]) for k in keys), str(len(group.runs))]


def _metrics(group: Group, names: Sequence[str]) -> list[str]:
    found = [group.metric(n) for n in names]
    return ["–" if f is None else f.text() for f in found]


def _named_apart(groups: Sequence[Group]) -> bool:
    """Whether the algorithm's name says all in which the groups' algorithms differ."""
    return len({g.label for g in groups}) == len(
        {tuple(str(v) for k, v in g.settings.items() if k.startswith("algorithm.")) for g in groups}
    )


def _costs(group: Group) -> list[str]:
    """Mean exchanges, MB, gradients and seconds."""
    names = ("exchanges", "bytes_up", "bytes_down", "gradients", "seconds")
    exchanges, up, down, gradients, seconds = _mean_costs(group, names)
    if exchanges is None or up is None or down is None:
        return ["–"] * 4
    return [
        f"{exchanges:,.0f}",
        f"{(up + down) / 1e6:,.1f}",
        f"{gradients:,.0f}",
        f"{seconds:,.1f}",
    ]


def _mean_costs(group: Group, names: Sequence[str]) -> list[float | None]:
    """Of those that have ended; None where nobody has."""
    ended = [r.summary for r in group.runs if "exchanges" in r.summary]
    return [sum(s[name] for s in ended) / len(ended) if ended else None for name in names]


def _setting(value: object) -> str:
    return "–" if value is None else plain(value)


def _cells(row: Sequence[str]) -> list[str]:
    return [cell.replace("|", r"\|") for cell in row]


def _latex(row: Sequence[str]) -> str:
    return " & ".join(cell.translate(_LATEX) for cell in row) + r" \\"
