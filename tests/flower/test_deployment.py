"""Real processes on loopback: SuperLink, three SuperNodes, TLS, keys, and SIGKILL."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from deployment import NAME, Deployment, make_authority, make_key
from safetensors.torch import load_file

from episode.experiments.config import Experiment, read_experiment
from episode.experiments.flower_app import write_app
from episode.experiments.run import execute, job_of
from episode.federation.sampling import Cohorts
from episode.results.store import read_rounds

SETTINGS = [
    "task=digits", "task.num_clients=3", "task.dtype=float64", "task.hidden=8",
    "task.time_steps=4", "budget.rounds=2", "budget.local_steps=2", "schedule.gamma=0.2",
    "record.evaluate_every=0", "engine.timeout_seconds=45",
]  # fmt: skip
SECONDS = 200.0
"""More than any run here takes on a busy machine."""
# A site that stops where a file tells it to, and leaves a mark: the test then does the rest.
FAULTY = """
import json, os, pathlib, time
from episode.federation.worker import Worker

ORDER = pathlib.Path(os.environ["FLWR_HOME"]) / "fault.json"

def halting(serve, phase):
    def served(self, client, *args, round, **rest):
        order = json.loads(ORDER.read_text()) if ORDER.exists() else {}
        if [client, phase, round] == order.get("at"):
            pathlib.Path(order["mark"]).touch()
            time.sleep(600)
        return serve(self, client, *args, round=round, **rest)
    return served

Worker.probe, Worker.local = halting(Worker.probe, "probe"), halting(Worker.local, "local")
"""


def experiment(*more: str) -> Experiment:
    return read_experiment(None, [*SETTINGS, *more])


def write(folder: Path, *more: str, faulty: bool = False) -> Path:
    write_app(folder, experiment(*more))
    if faulty:
        client = folder / "episode_app" / "client_app.py"
        client.write_text(client.read_text() + FAULTY)
    return folder


def expected(*more: str, cohorts: Cohorts | None = None) -> torch.Tensor:
    job = job_of(experiment(*more))
    if cohorts is not None:
        object.__setattr__(job.plan, "cohorts", cohorts)
    return execute(job).x


def model_of(run: Path) -> torch.Tensor:
    return torch.cat([t.reshape(-1) for t in load_file(run / "model.safetensors").values()])


def same(run: Path, x: torch.Tensor) -> None:
    """The same numbers, whatever order the file has them in."""
    assert torch.equal(model_of(run).sort().values, x.sort().values)


def until(done: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.2)


def order(deployment: Deployment, client: int, phase: str, round: int) -> Path:
    mark = deployment.folder / f"mark-{client}-{phase}-{round}"
    text = json.dumps({"at": [client, phase, round], "mark": str(mark)})
    (deployment.folder / "home" / "fault.json").write_text(text)
    return mark


@pytest.mark.long
@pytest.mark.timeout(420)
def test_a_deployment_with_tls_and_keys_gives_the_numbers_of_the_simulation(tmp_path: Path) -> None:
    with Deployment(tmp_path / "d", secure=True) as deployment:
        for number in range(3):
            key = make_key(tmp_path, f"site{number}")
            deployment.flwr("supernode", "register", str(key.with_suffix(".pub")), NAME)
            deployment.start_site(number, key)
        # Neither of these gets in: a key that nobody registered, an authority that is not ours.
        deployment.start_site(7, make_key(tmp_path, "stranger"), tries=2)
        other = make_authority(tmp_path, "other")
        deployment.start_site(8, key, root=other, tries=2)
        for name, rounds in (("episode", 1), ("scaffold", 2)):
            more = (f"algorithm={name}", "algorithm.momentum=0.5", f"budget.rounds={rounds}")
            run = tmp_path / f"run-{name}"
            number = deployment.run(write(tmp_path / name, *more), [f'folder="{run}"'])
            until((run / "summary.json").exists, SECONDS, deployment.log)
            assert deployment.wait(number, 60) == "finished:completed"
            same(run, expected(*more))
            assert [r["cohort"] for r in read_rounds(run / "rounds.jsonl")] == [[0, 1, 2]] * rounds
        for refused in (7, 8):
            assert deployment.nodes[refused].wait(timeout=60) != 0, deployment.log(
                f"site-{refused}"
            )
        listed = json.dumps(deployment.flwr("supernode", "list", NAME))
        assert listed.count('"online"') == 3, listed


@pytest.mark.long
@pytest.mark.timeout(480)
def test_sites_killed_in_each_phase_and_one_that_never_answers(tmp_path: Path) -> None:
    from federation import Without

    more = ("task.num_clients=4", "engine.min_replies=1")
    with Deployment(tmp_path / "d", sites=4) as deployment:
        for number in range(4):
            deployment.start_site(number)
        app = write(tmp_path / "app", *more, faulty=True)
        run = tmp_path / "run"
        mark = order(deployment, 3, "probe", 0)
        started = deployment.run(app, [f'folder="{run}"'])
        until(mark.exists, SECONDS, deployment.log)
        deployment.kill_site(3)
        mark = order(deployment, 2, "local", 0)
        until(mark.exists, SECONDS, deployment.log)
        deployment.kill_site(2)
        mark = order(deployment, 1, "local", 1)
        until(mark.exists, SECONDS, deployment.log)
        deployment.stop_site(1)
        until((run / "summary.json").exists, SECONDS, deployment.log)
        assert deployment.wait(started, 60) == "finished:completed"
        rounds = read_rounds(run / "rounds.jsonl")
        assert [r["cohort"] for r in rounds] == [[0, 1], [0]]
        assert "in the probe phase" in rounds[0]["missing"]["3"]
        assert "in the local phase" in rounds[0]["missing"]["2"]
        assert "did not reply within" in rounds[1]["missing"]["1"]
        gone = Without(((0, 3), (0, 2), (1, 3), (1, 2), (1, 1)))
        same(run, expected(*more, cohorts=gone))


@pytest.mark.long
@pytest.mark.timeout(420)
def test_a_killed_serverapp_and_a_stopped_run_go_on_where_they_were(tmp_path: Path) -> None:
    more = ("algorithm=scaffold_clipped", "algorithm.momentum=0.5", "budget.rounds=3")
    with Deployment(tmp_path / "d") as deployment:
        for number in range(3):
            deployment.start_site(number)
        app = write(tmp_path / "app", *more)
        run = tmp_path / "run"

        def played() -> int:
            path = run / "rounds.jsonl"
            return len(read_rounds(path)) if path.exists() else 0

        first = deployment.run(app, [f'folder="{run}"'])
        until(lambda: played() >= 1, SECONDS, deployment.log)
        server = deployment.serverapp()
        assert server is not None
        deployment.kill(server)
        assert deployment.wait(first, 120) != "finished:completed"
        assert not (run / "summary.json").exists()
        second = deployment.run(app, [f'folder="{run}"'])
        until(lambda: played() >= 2, SECONDS, deployment.log)
        if not (run / "summary.json").exists():
            deployment.flwr("stop", second, NAME)
            deployment.wait(second, 60)
            third = deployment.run(app, [f'folder="{run}"'])
            assert deployment.wait(third, SECONDS) == "finished:completed"
        same(run, expected(*more))


@pytest.mark.long
@pytest.mark.timeout(240)
def test_flwr_run_takes_the_example_as_it_is(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "examples" / "flower"
    with Deployment(tmp_path / "d", simulation=True) as deployment:
        number = deployment.run(example, ["num-rounds=2"])
        assert deployment.wait(number, 180) == "finished:completed", deployment.log()
        model = torch.load(tmp_path / "d" / "digits_sites.pt", weights_only=True)
        assert model["2.bias"].shape == (10,)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_run_that_fails_is_not_hidden(tmp_path: Path) -> None:
    with Deployment(tmp_path / "d") as deployment:
        deployment.start_site(0)
        app = write(tmp_path / "app", "engine.timeout_seconds=15")
        command = [sys.executable, "-m", "episode", "flower", "run", str(app), NAME]
        done = subprocess.run(
            command,
            env=deployment.environment,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 1
        assert "Error: Run" in done.stderr
        assert "3 sites are needed, but 1 came within 15 s (missing: site 1, site 2)" in done.stderr
        assert "Traceback" not in done.stderr
