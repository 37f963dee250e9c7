"""An engine outside the package: found by its file, and no different from a built-in one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from episode.registry import load_file
from episode.results.store import read_rounds
from episode.testing import check_engine

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_engine.py"
TINY = ["--set", "task=synthetic", "--set", "budget.rounds=3", "--quiet"]


def episode(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "episode", *arguments],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_it_plays_the_simulations_rounds_and_adds_its_notes(tmp_path: Path) -> None:
    done = episode(tmp_path, "run", *TINY, "--engine", f"{EXAMPLE}:SlowLinks", "--folder", "own")
    assert done.returncode == 0, done.stderr
    assert episode(tmp_path, "run", *TINY, "--folder", "ours").returncode == 0
    own, ours = (read_rounds(tmp_path / name / "rounds.jsonl") for name in ("own", "ours"))
    assert all(r.pop("link_seconds") > 0.1 for r in own)  # two exchanges of 0.05 s and more
    assert [{**r, "seconds": 0} for r in own] == [{**r, "seconds": 0} for r in ours]


def test_it_is_sound() -> None:
    slow_links = load_file(str(EXAMPLE)).SlowLinks
    check_engine(slow_links)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.py:SlowLinks", "There is no file nowhere.py"),
        (f"{EXAMPLE}:SlowLink", "did you mean"),
        (f"{EXAMPLE}:LATENCY", "is not an engine: derive it from episode.Engine"),
        ("no.such.package:Engine", "no module 'no' is installed"),
        ("simulaton", "did you mean 'simulation'"),
    ],
)
def test_what_is_no_engine_is_a_sentence_and_exit_code_2(
    tmp_path: Path, name: str, message: str
) -> None:
    done = episode(tmp_path, "run", *TINY, "--engine", name)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []
