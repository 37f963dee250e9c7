"""The fault matrix: what each test says about a fault, as a table. `make fault-matrix` prints it.

A test says with `@pytest.mark.fault(engine=..., phase=..., fault=..., outcome=...)` which cells of
the matrix it covers. What the marker leaves out is a parameter of the test.
"""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import pytest

ENGINES = ("simulation", "torchrun", "Flower")
PHASES = ("probe", "local", "average", "checkpoint", "evaluate")
FAULTS = (
    "SIGKILL",
    "SIGSTOP",
    "NaN",
    "wrong shape",
    "stale round",
    "disk full",
    "deleted folder",
)
RESUMES = "resumes bit for bit"
DIVERGED = "ends as `diverged`"
GOES_ON = "goes on without the site (`min_replies`)"
LEFT_OUT = "goes on without the site"
RECORDED = "goes on; recorded as NaN"
HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "reliability.md"
BEGIN, END = "<!-- fault matrix -->\n", "<!-- end of the fault matrix -->"

Place = tuple[str, str, str]
"""An engine, a phase and a fault."""

IMPOSSIBLE: Mapping[Place, str] = {
    **{
        ("simulation", phase, "stale round"): "one process calls functions and awaits no messages, "
        "so nothing can arrive late"
        for phase in ("probe", "local", "average", "evaluate")
    },
    ("simulation", "average", "wrong shape"): "all clients step on replicas of one model, and a "
    "gradient of another shape is an error in its phase",
    ("torchrun", "evaluate", "stale round"): "what ranks tell of an evaluation carries its number, "
    "and is removed once it is read",
    ("Flower", "average", "wrong shape"): "a reply of another shape is rejected in its phase, "
    "before any mean is taken",
    ("Flower", "average", "stale round"): "a reply about another round is rejected in its phase, "
    "before any mean is taken",
}
"""Cells in which nothing can happen, and why."""


def error_within(seconds: float) -> str:
    """Return the outcome of a run that stops in time, with an error that says what happened."""
    return f"named error within {seconds:g} s"


@dataclass(frozen=True)
class Covered:
    """A test, the cell that it covers, and what it finds there."""

    place: Place
    outcome: str
    test: str


def covered_by(item: Any) -> Iterator[Covered]:
    """Yield what a collected test says about the matrix."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    for mark in item.iter_markers("fault"):
        said = {**given, **mark.kwargs}
        places = product(*(_each(said[name]) for name in ("engine", "phase", "fault")))
        for engine, phase, fault in places:
            if engine not in ENGINES or phase not in PHASES or fault not in FAULTS:
                raise pytest.UsageError(f"{item.nodeid}: no cell {engine} x {phase} x {fault}")
            yield Covered((engine, phase, fault), said["outcome"], item.nodeid)


def _each(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


class Collector:
    """A plugin of pytest that remembers what the collected tests cover."""

    def __init__(self) -> None:
        self.found: list[Covered] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        self.found = [covered for item in items for covered in covered_by(item)]


def tables(found: Iterable[Covered]) -> str:
    """Return a table for each engine, and why some cells cannot occur."""
    outcomes: dict[Place, list[str]] = {}
    for covered in found:
        said = outcomes.setdefault(covered.place, [])
        if covered.outcome not in said:
            said.append(covered.outcome)
    reasons: list[str] = []
    lines: list[str] = []
    for engine in ENGINES:
        lines += [f"| {engine} | {' | '.join(FAULTS)} |", "|---" * (1 + len(FAULTS)) + "|"]
        for phase in PHASES:
            cells = [_cell((engine, phase, fault), outcomes, reasons) for fault in FAULTS]
            lines.append(f"| **{phase}** | {' | '.join(cells)} |")
        lines.append("")
    notes = [f"{_letter(k)}. {reason}." for k, reason in enumerate(reasons)]
    return "\n".join([*lines, "Cannot occur:", "", *(f"- {note}" for note in notes), ""])


def _cell(place: Place, outcomes: Mapping[Place, list[str]], reasons: list[str]) -> str:
    if place in outcomes:
        return "; ".join(sorted(outcomes[place]))
    if place not in IMPOSSIBLE:
        return ""
    if (reason := IMPOSSIBLE[place]) not in reasons:
        reasons.append(reason)
    return f"cannot occur ({_letter(reasons.index(reason))})"


def _letter(index: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[index]


def collect() -> list[Covered]:
    """Return what the tests of this folder say, without running any of them."""
    collector = Collector()
    files = [str(f) for f in sorted(HERE.rglob("test_*.py")) if "mark.fault" in f.read_text()]
    with contextlib.redirect_stdout(io.StringIO()) as output:
        code = pytest.main(["--collect-only", "-q", *files], plugins=[collector])
    if code != pytest.ExitCode.OK:
        sys.exit(output.getvalue())
    return collector.found


def printed(*options: str) -> str:
    """Return what this program prints."""
    command = [sys.executable, str(Path(__file__)), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def main() -> None:
    """Print the matrix; with --tests the tests of each cell, with --write put it into the page."""
    found = collect()
    text = tables(found)
    if "--tests" in sys.argv:
        text = "".join(f"{' x '.join(c.place)}: {c.outcome}: {c.test}\n" for c in found)
    if "--write" in sys.argv:
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{text}{END}{rest.split(END)[1]}")
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
