"""The written app holds the experiment, and can be overridden like any Flower app."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from typing import Any

import pytest

from episode import EpisodeError
from episode.flower.app import _of_run_config
from episode.flower.app_files import write_app
from episode.runs.config import read_experiment

SETTINGS = [
    "task=quadratics", "task.slopes=[-3.0, 4.0, 1.0]", "task.curvatures=[1, 1, 2]", "seed=4",
    "schedule.kind=step", "schedule.milestones=[0.5, 0.75]", "algorithm.correction=resampled",
    "algorithm.clipping=per_step", "algorithm.reuse_probe=true", "engine.max_norm=50",
]  # fmt: skip


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten an app's config as Flower does."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def test_an_app_holds_its_experiment(tmp_path: Path) -> None:
    experiment = read_experiment(None, SETTINGS)
    write_app(tmp_path / "app", experiment)
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    config = flat(project["tool"]["flwr"]["app"]["config"])
    assert all(isinstance(v, (bool, int, float, str)) for v in config.values())
    found = _of_run_config(config)
    assert found.id == experiment.id
    assert found.engine.name == "flower"
    assert found.engine.min_replies is None
    changed = _of_run_config({**config, "budget.rounds": 7, "engine.min_replies": 2})
    assert (changed.budget.rounds, changed.engine.min_replies) == (7, 2)
    assert found.record.per_client is None
    assert _of_run_config({**config, "record.per_client": False}).record.per_client is False
    for part in project["tool"]["flwr"]["app"]["components"].values():
        module, name = part.split(":")
        path = tmp_path / "app" / (module.replace(".", "/") + ".py")
        assert f"{name} = " in path.read_text()


def test_an_apps_page_leads_with_tls_and_keeps_the_superlink_on_loopback(tmp_path: Path) -> None:
    write_app(tmp_path / "app", read_experiment(None, SETTINGS))
    text = (tmp_path / "app" / "README.md").read_text()
    assert text.index("**TLS first.**") < text.index("    sudo -u flower flower-superlink --ssl-ca")
    assert "--host 127.0.0.1" in text
    assert text.index("--insecure") > text.index("episode flower site")


@pytest.mark.parametrize("algorithm", ["scaffold_clipped", "naive_parallel_clip", "episode"])
def test_an_app_has_a_name_that_flower_takes(algorithm: str, tmp_path: Path) -> None:
    write_app(tmp_path / "app", read_experiment(None, [*SETTINGS[:3], f"algorithm={algorithm}"]))
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["project"]
    assert re.fullmatch("[A-Za-z][A-Za-z0-9-]{0,31}", project["name"])


def test_an_app_is_not_written_over_anything(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine"):
        with pytest.raises(EpisodeError, match="is not empty: choose a new folder"):
            write_app(folder, read_experiment(None, SETTINGS))


@pytest.mark.slow
def test_a_refused_cell_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "episode", "flower", "app", str(tmp_path / "app")]
    command += ["--set", "algorithm.correction=uncorrected", "--set", "algorithm.clipping=episodic"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "Error: Episodic clipping needs a global gradient" in done.stderr
    assert not (tmp_path / "app").exists()


LOG = """INFO : Starting
Traceback (most recent call last):
  File "server_app.py", line 3, in main
RuntimeError: Error(s) in loading state_dict for Net:
\tsize mismatch for 0.weight: copying a param with shape [16, 64]
ERROR:     Exit Code: 201
"""


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (LOG, "RuntimeError: Error(s) in loading state_dict for Net: size mismatch for 0.weight"),
        ("INFO : Starting\n", "See: flwr log 7 mine --show"),
    ],
)
def test_a_failed_runs_last_error_are_its_whole_error(
    log: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from episode.cli import flower as cli_flower

    done = subprocess.CompletedProcess([], 0, stdout=log, stderr="")
    monkeypatch.setattr(cli_flower.subprocess, "run", lambda *_, **__: done)
    assert cli_flower._last_error("7", "mine").startswith(words)


@pytest.mark.slow
def test_a_folder_that_is_no_app_is_a_sentence_and_exit_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "episode", "flower", "run", str(tmp_path / "none"), "here"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "none is not a Flower app: write one with episode flower app" in done.stderr


def test_rounds_and_warnings_of_a_run_are_shown_as_they_come() -> None:
    from episode.cli.flower_log import followed

    lines = (
        "\x1b[92mINFO \x1b[0m:     [ROUND 1/9] loss 2.3  test_accuracy 0.4",
        "INFO :      Start `flwr-serverapp` process",
        "WARNING :   Round 2: site 1 did not answer",
    )
    program = f"import time; print({chr(10).join(lines)!r}, flush=True); time.sleep(600)"
    said: list[str] = []
    enough = threading.Event()

    def say(line: str) -> None:
        said.append(line)
        if len(said) == 2:
            enough.set()

    with followed([sys.executable, "-c", program], say):
        assert enough.wait(60)
    assert said == [
        "[ROUND 1/9] loss 2.3  test_accuracy 0.4",
        "Round 2: site 1 did not answer",
    ]
