"""Recipes under torchrun: clients are spread over its processes, and the first one serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from launch import ranks


@pytest.mark.slow
def test_two_processes_make_a_recipe_together(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    command = ["-m", "episode", "reproduce", "sentiment140-steps", "--folder", str(folder), "-q"]
    ended = ranks(2, command, timeout=240, EPISODE_HOME=str(tmp_path / "home"))
    assert [e.code for e in ended] == [0, 0], ended
    summaries = [json.loads(p.read_text()) for p in folder.glob("runs/*/summary.json")]
    assert len(summaries) == 9
    assert {s["status"] for s in summaries} == {"finished"}
    assert {s["cluster"]["ranks"] for s in summaries} == {2}
    assert (folder / "sentiment140-steps" / "figure.pdf").exists()
    assert "Tables, figures and claims" in ended[0].output
    assert "Tables, figures and claims" not in ended[1].output


@pytest.mark.slow
def test_tuning_is_left_to_processes_of_their_own(tmp_path: Path) -> None:
    command = ["-m", "episode", "reproduce", "digits", "--tune", "--folder", str(tmp_path / "out")]
    ended = ranks(2, command, timeout=120)
    assert [e.code for e in ended] == [2, 2]
    assert "torchrun cannot spread --tune" in ended[0].output
    assert "Traceback" not in ended[0].output + ended[1].output
