"""Mistakes at real sites: each is named in the run's log, and `episode flower run` fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from deployment import NAME, Deployment
from readme_project import changed

from episode.flower.app_files import write_app
from episode.runs.config import read_experiment

SETTINGS = ["task=quadratics", "task.curvatures=[1.0, 2.0, 0.5]", "task.slopes=[-3.0, 4.0, 1.0]"]


def refusal(deployment: Deployment, app: Path, *changes: str) -> str:
    """Return what `episode flower run` prints about a run that must fail."""
    deployment.wait_for_sites()
    options = [part for change in changes for part in ("-c", change)]
    done = subprocess.run(
        [sys.executable, "-m", "episode", "flower", "run", str(app), NAME, *options],
        env=deployment.environment,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Error: Run" in done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


def project(folder: Path, before: str, after: str) -> Path:
    """Write the README's project with one mistake."""
    app = changed(folder) / "app.py"
    text = app.read_text()
    assert text.count(before) == 1
    app.write_text(text.replace(before, after))
    return folder


@pytest.mark.long
@pytest.mark.timeout(900)
def test_mistakes_at_sites_are_named_and_not_hidden(tmp_path: Path) -> None:
    with Deployment(tmp_path / "d") as deployment:
        app = tmp_path / "app"
        write_app(app, read_experiment(None, [*SETTINGS, "engine.timeout_seconds=40"]))
        deployment.start_site(0)
        said = refusal(deployment, app, "engine.timeout_seconds=20")
        assert "3 sites are needed, but 1 came within 20 s (missing: site 1, site 2)" in said

        deployment.start_site(1)
        deployment.start_site(2, partition=1)
        said = refusal(deployment, app)
        assert "At the start, before round 0: site 1 (node " in said
        assert "has the partition-id of node " in said

        deployment.kill_site(2)
        deployment.start_site(2)
        said = refusal(deployment, app, "engine.min_replies=4")
        assert "min_replies is 4, but there are 3 sites" in said

        other = "ArrayRecord(nn.Linear(8, 3).state_dict())"
        mistake = project(tmp_path / "model", "ArrayRecord(Net().state_dict())", other)
        said = refusal(deployment, mistake)
        assert "At the start, before round 0: site " in said
        assert "it trains 0.weight, which the initial arrays do not have" in said

        rows = "torch.randn(64, 8, generator=generator) + site, torch.full((64,), site % 3)"
        fewer = rows.replace("64", "64 * (site != 2)")
        said = refusal(deployment, project(tmp_path / "data", rows, fewer))
        assert "At the start, before round 0: site 2 (node " in said
        assert "no examples" in said
