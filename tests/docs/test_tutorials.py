"""Tutorials: every block runs, and prints what the page shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import run_page
from run_page import alike, apply, blocks_of, commands_of

DOCS = Path(run_page.__file__).parents[1]
QUICK = ("start/five_minutes", "tutorials/own_clipping")


def every_page() -> list[str]:
    tutorials = sorted(p.stem for p in (DOCS / "tutorials").glob("*.md"))
    return ["start/five_minutes", *(f"tutorials/{name}" for name in tutorials)]


def marked(page: str) -> object:
    return pytest.param(page, marks=pytest.mark.slow if page in QUICK else pytest.mark.long)


@pytest.mark.parametrize("page", [marked(page) for page in every_page()])
@pytest.mark.timeout(900)
def test_a_page_shows_what_its_blocks_print(page: str) -> None:
    program = [sys.executable, "-W", "ignore", run_page.__file__, str(DOCS / f"{page}.md")]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_output_may_differ_in_its_last_digits_only() -> None:
    assert alike("accuracy 0.851, 3 rounds", "accuracy  0.853, 3 rounds\n")
    assert not alike("accuracy 0.851, 3 rounds", "accuracy 0.951, 3 rounds")
    assert not alike("accuracy 0.851, 3 rounds", "accuracy 0.851, 4 rounds")
    assert not alike("finished", "diverged")


def test_dots_stand_for_what_differs_in_a_line_or_for_lines() -> None:
    assert alike("seconds …\nend", "seconds 3.2\nend")
    assert alike("begin\n…\nend", "begin\none\ntwo\nend")
    assert not alike("seconds …\nend", "minutes 3.2\nend")


def test_blocks_are_files_commands_or_python() -> None:
    named = "```{code-block} toml\n:caption: a.toml\n\n[x]\n```\n\n"
    file, console = blocks_of(named + "```console\n$ ls \\\n  -a\na\n$ pwd\n```\n")
    assert (file.caption, file.text) == ("a.toml", "[x]\n")
    assert commands_of(console.text) == [("ls \\\n  -a", "a\n"), ("pwd", "")]


def test_a_diff_changes_the_lines_that_it_names() -> None:
    assert apply(" one\n-two\n+three\n", "zero\none\ntwo\nfour\n") == "zero\none\nthree\nfour\n"
    with pytest.raises(ValueError, match="not in list"):
        apply("-five\n", "one\n")
