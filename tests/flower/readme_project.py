"""Apply the README's three lines to a FedAvg project."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = Path(__file__).parent / "fedavg_project"


def diff_of(page: str) -> list[str]:
    """Return the lines of the first diff on a page that mentions our strategy."""
    blocks = (ROOT / page).read_text().split("```diff\n")[1:]
    lines = [block.split("```")[0].splitlines() for block in blocks]
    return next(block for block in lines if any("EpisodeStrategy" in line for line in block))


def apply(diff: list[str], text: str) -> str:
    """Return the text after the diff, each line of which must match exactly once, in order."""
    lines, at = text.splitlines(), 0
    for line in filter(str.strip, diff):
        if line.startswith("+"):
            lines.insert(at, line[1:])
        else:
            assert lines.count(line[1:]) == 1, line
            assert lines.index(line[1:]) >= at, line
            at = lines.index(line[1:])
            if line.startswith("-"):
                del lines[at]
                continue
        at += 1
    return "\n".join(lines) + "\n"


def changed(folder: Path) -> Path:
    """Write the FedAvg project with the README's diff applied."""
    shutil.copytree(PROJECT, folder)
    app = folder / "app.py"
    app.write_text(apply(diff_of("README.md"), app.read_text()))
    return folder
