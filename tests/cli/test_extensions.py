"""Pieces and tasks from outside the package, through the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
QUICK = ["budget.rounds=2", "budget.local_steps=2"]


def episode(cwd: Path, *arguments: str, path: Path | None = None, code: int = 0) -> str:
    paths = [str(path)] if path else []
    paths += [os.environ["PYTHONPATH"]] if "PYTHONPATH" in os.environ else []
    done = subprocess.run(
        [sys.executable, "-m", "episode", *arguments],
        cwd=cwd, capture_output=True, text=True, timeout=200, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr if code else done.stdout


def run(cwd: Path, *settings: str, path: Path | None = None) -> dict[str, object]:
    arguments = [part for s in (*QUICK, *settings) for part in ("--set", s)]
    result: dict[str, object] = json.loads(episode(cwd, "run", "--json", *arguments, path=path))
    return result


def test_a_clipping_in_a_file_runs_is_stored_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "my_clipping.py").write_text((EXAMPLES / "my_clipping.py").read_text())
    cell = ["algorithm.correction=resampled", "algorithm.clipping=my_clipping.py:Soft"]
    one, fifty = run(tmp_path, *cell), run(tmp_path, *cell, "algorithm.clipping.scale=50")
    assert one["folder"] != fifty["folder"]
    assert one["loss"] != fifty["loss"]
    assert str(one["folder"]).startswith("runs/digits-resampled-Soft-")
    config = json.loads((tmp_path / str(fifty["folder"]) / "config.json").read_text())
    assert config["algorithm"]["clipping"] == {"name": "my_clipping.py:Soft", "scale": 50.0}
    own = "algorithm.clipping.name=my_clipping.py:Soft"
    again = episode(tmp_path, "run", str(fifty["folder"]), "--resume", "--json", "--set", own)
    assert json.loads(again)["loss"] == fifty["loss"]
    named = run(tmp_path, "algorithm=my_clipping.py:SOFT_EPISODE")
    assert named["loss"] == one["loss"]
    table = episode(tmp_path, "compare", "runs")
    assert "resampled-Soft" in table


def test_a_task_in_a_file_and_in_a_module_is_the_same(tmp_path: Path) -> None:
    by_file = run(tmp_path, f"task={EXAMPLES}/my_task.py:Waves")
    by_module = run(tmp_path, "task=my_task:Waves", path=EXAMPLES)
    assert by_file["metrics"] == by_module["metrics"]
    assert str(by_module["folder"]).startswith("runs/Waves-episode-")


def test_entry_points_are_listed_and_run(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    information = installed / "extras-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: extras\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[episode.algorithms]\nsoft = my_clipping:Soft\nsoft_episode = my_clipping:SOFT_EPISODE\n"
        "[episode.tasks]\nwaves = my_task:Waves\n"
    )
    for name in ("my_clipping.py", "my_task.py"):
        (installed / name).write_text((EXAMPLES / name).read_text())
    listed = json.loads(episode(tmp_path, "list", "--json", path=installed))
    assert listed["tasks"]["waves"] == "slow and fast sine waves, told apart by a GRU"
    assert "η / (1 + η‖g‖/(scale·γ))" in listed["algorithms"]["soft"]
    assert "[resampled x soft]" in listed["algorithms"]["soft_episode"]
    cell = ["algorithm.correction=resampled", "algorithm.clipping=soft"]
    one = run(tmp_path, "task=waves", *cell, path=installed)
    other = run(tmp_path, "task=waves", "algorithm=soft_episode", path=installed)
    assert one["metrics"] == other["metrics"]
    config = json.loads((tmp_path / str(one["folder"]) / "config.json").read_text())
    assert config["algorithm"]["clipping"] == {"name": "soft", "scale": 1.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import nothing_like_this", "cannot be imported: ModuleNotFoundError in line 1"),
        ("from episode import Clipping\nclass Soft(Clipping): ...", "is not a frozen dataclass"),
        ("class Soft: ...", "is not a clipping: derive it from episode.Clipping"),
    ],
)
def test_a_bad_piece_is_a_sentence_and_exit_code_2(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text(text)
    cell = ["--set", "algorithm.correction=resampled", "--set", "algorithm.clipping=bad.py:Soft"]
    assert message in episode(tmp_path, "run", *cell, code=2)
    assert not (tmp_path / "runs").exists()
