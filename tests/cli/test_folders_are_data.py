"""A folder is data: whatever it names is imported only if the user names it too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from episode.cli.main import app
from episode.errors import EpisodeError

EXAMPLES = Path(__file__).parents[2] / "examples"
PLACES: dict[str, dict[str, Any]] = {
    "task": {"task": {"name": "NAME"}},
    "engine": {"engine": {"name": "NAME"}},
    "algorithm": {"algorithm": {"name": "NAME"}},
    "clipping": {"algorithm": {"correction": "resampled", "clipping": "NAME"}},
    "clipping with fields": {
        "algorithm": {"correction": "resampled", "clipping": {"name": "NAME", "scale": 2}}
    },
    "correction": {"algorithm": {"correction": "NAME", "clipping": "episodic"}},
    "descent": {"algorithm": {"name": "episode", "descent": {"name": "NAME"}}},
}
CONFIG = {
    "seed": 0,
    "task": {"name": "synthetic"},
    "algorithm": {"name": "episode"},
    "schedule": {"eta": 0.1, "gamma": 0.1},
    "budget": {"rounds": 2, "local_steps": 2},
}
COMMANDS = [
    ["run", "found", "--dry-run"],
    ["run", "found"],
    ["run", "found", "--resume"],
    ["run", "found", "--folder", "other"],
    ["sweep", "found", "--over", "seed=0,1"],
    ["sweep", "found", "--over", "seed=0,1", "--dry-run"],
    ["tune", "found", "--search", "schedule.eta=0.1,0.2"],
    ["flower", "app", "app", "--config", "found"],
    ["diagnose", "found"],
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)


def episode(*arguments: str) -> str:
    """Run a command, and return what it prints."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def refusal(*arguments: str) -> str:
    """Run a command that makes a user's mistake, and return the sentence about it."""
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, EpisodeError), done.output
    return str(done.exception)


def found_folder(tmp_path: Path, place: dict[str, Any], name: str) -> Path:
    """Write a folder that names code which leaves a trace if it is ever imported."""
    (tmp_path / "evil.py").write_text("open('TRACE', 'w')\nclass It: ...\n")
    folder = tmp_path / "found"
    folder.mkdir()
    text = json.dumps(CONFIG | place).replace("NAME", name)
    (folder / "config.json").write_text(text)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "state.safetensors").touch()
    return folder


@pytest.mark.parametrize("place", PLACES)
def test_reading_a_folder_imports_nothing_that_it_names(place: str, tmp_path: Path) -> None:
    found_folder(tmp_path, PLACES[place], "evil.py:It")
    for command in (["report", "found"], ["compare", "found"], ["watch", "found", "--once"]):
        episode(*command)
    error = refusal("run", "found", "--dry-run")
    assert "names Python code in " in error
    assert not (tmp_path / "TRACE").exists()


@pytest.mark.parametrize("name", ["evil.py:It", "evil:It", "./evil.py:It"])
def test_no_command_imports_what_only_a_folder_names(name: str, tmp_path: Path) -> None:
    found_folder(tmp_path, PLACES["task"], name)
    for command in COMMANDS:
        error = refusal(*command)
        assert f"if you trust that code, add --set task.name={name}" in error
    assert not (tmp_path / "TRACE").exists()
    assert not (tmp_path / "other").exists()


def test_a_study_folder_is_data_too(tmp_path: Path) -> None:
    found_folder(tmp_path, PLACES["task"], "evil.py:It")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "best.toml").write_text('task = "evil.py:It"\n')
    error = refusal("reproduce", "snli", "--tuned", "study")
    assert "names Python code in task.name (evil.py:It)" in error
    assert not (tmp_path / "TRACE").exists()


def test_a_folder_runs_again_when_the_user_names_its_code(tmp_path: Path) -> None:
    for name in ("my_clipping.py", "my_task.py", "my_engine.py"):
        (tmp_path / name).write_text((EXAMPLES / name).read_text())
    own = ["--task", "my_task.py:Waves", "--engine", "my_engine.py:SlowLinks"]
    own += ["--set", "algorithm=my_clipping.py:SOFT_EPISODE"]
    short = ["--set", "budget.rounds=1", "--set", "budget.local_steps=1"]
    first = json.loads(episode("run", "--folder", "mine", "--json", *own, *short))
    again = ["run", "mine", "--resume", "--json"]
    error = refusal(*again)
    assert "--set algorithm.name=my_clipping.py:SOFT_EPISODE" in error
    assert "--set task.name=my_task.py:Waves" in error
    assert "--set engine.name=my_engine.py:SlowLinks" in error
    error = refusal(*again, *own[:4])
    assert "names Python code in algorithm.name (my_clipping.py:SOFT_EPISODE)" in error
    assert json.loads(episode(*again, *own))["loss"] == first["loss"]
    shown = error.partition("add ")[2].split()
    assert json.loads(episode(*again, *shown))["loss"] == first["loss"]
    episode("report", "mine")
    page = (tmp_path / "mine" / "report.html").read_text()
    assert "--set algorithm.name=my_clipping.py:SOFT_EPISODE" in page


def test_a_config_file_of_the_users_own_may_name_code(tmp_path: Path) -> None:
    (tmp_path / "my_task.py").write_text((EXAMPLES / "my_task.py").read_text())
    (tmp_path / "my.toml").write_text('task = "my_task.py:Waves"\n')
    assert 'name = "my_task.py:Waves"' in episode("run", "my.toml", "--dry-run")


@pytest.mark.parametrize("name", [["evil.py:It"], {"evil.py": "It"}, 3])
def test_a_name_that_is_no_text_is_refused(name: Any, tmp_path: Path) -> None:
    folder = found_folder(tmp_path, {}, "")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"task": {"name": name}}))
    assert "task.name is" in refusal("run", "found", "--dry-run")
    assert not (tmp_path / "TRACE").exists()
