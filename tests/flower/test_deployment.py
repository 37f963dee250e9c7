"""Real processes on loopback: SuperLink, three SuperNodes, TLS, keys, and SIGKILL.

Each message has a process of its own. It is forked from one that has imported torch, flwr and
episode (`programs/warm_superexec.py`), which saves most of its time; `test_front_door.py` and
`test_users.py` have sites that start processes as Flower does.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from deployment import NAME, Deployment, make_authority, make_key

from episode import ALGORITHMS
from episode.federation import checkpoint
from episode.federation.sampling import Cohorts
from episode.flower.app_files import write_app
from episode.results.store import CHECKPOINT, read_json, read_rounds
from episode.runs.config import Experiment, read_experiment
from episode.runs.trainer import job_of, train
from fault_matrix import GOES_ON, RESUMES
from federation import Without

DIGITS = [
    "task=digits", "task.num_clients=3", "task.dtype=float64", "task.hidden=8", "task.time_steps=4",
]  # fmt: skip
LIGHT = [  # it has no data, which the process of each message would have to load again
    "task=quadratics", "task.curvatures=[1.0, 2.0, 0.5]", "task.slopes=[-3.0, 4.0, 1.0]",
    "task.noise=0.5",
]  # fmt: skip
SETTINGS = [
    *LIGHT, "budget.rounds=2", "budget.local_steps=2", "schedule.gamma=2.0",
    "record.evaluate_every=0", "engine.timeout_seconds=60",
]  # fmt: skip
PROJECT = Path(__file__).parent / "fedavg_project"
SECONDS = 300.0
"""Seconds; longer than any run here takes on a busy machine."""
# A site that waits where a file tells it to, and writes a file to say so. The test then does its
# part, and can let the site go on by changing the first file.
FAULTY = """
import json, os, pathlib, time
from episode.federation.worker import Worker

ORDER = pathlib.Path(os.environ["FLWR_HOME"]) / "fault.json"

def halting(serve, phase):
    def served(self, client, *args, round, **rest):
        until = time.monotonic() + 600
        while ORDER.exists() and time.monotonic() < until:
            order = json.loads(ORDER.read_text())
            if [client, phase, round] != order["at"]:
                break
            pathlib.Path(order["mark"]).touch()
            time.sleep(0.1)
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


def write_every_algorithm(folder: Path) -> Path:
    """Write an app that plays all algorithms with the model of `federation`."""
    shutil.copytree(PROJECT, folder)
    shutil.copy(Path(__file__).parent / "programs" / "every_algorithm.py", folder / "app.py")
    project = folder / "pyproject.toml"
    project.write_text(project.read_text() + 'folder = ""\n')
    return folder


def expected(*more: str, cohorts: Cohorts | None = None) -> torch.Tensor:
    job = job_of(experiment(*more))
    if cohorts is not None:
        object.__setattr__(job.plan, "cohorts", cohorts)
    return train(job).x


def same(run: Path, x: torch.Tensor) -> None:
    """Check that two models are the same, bit for bit."""
    identity = read_json(run / "config.json")["id"]
    server, _ = checkpoint.load(run / CHECKPOINT, identity, "cpu")
    assert torch.equal(server.x, x)


def until(done: Callable[[], bool], seconds: float, otherwise: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, otherwise()
        time.sleep(0.2)


def order(deployment: Deployment, client: int, phase: str, round: int) -> Path:
    mark = deployment.folder / f"mark-{client}-{phase}-{round}"
    text = json.dumps({"at": [client, phase, round], "mark": str(mark)})
    new = deployment.folder / "home" / "new.json"
    new.write_text(text)
    new.rename(deployment.folder / "home" / "fault.json")
    return mark


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_deployment_with_tls_and_keys_gives_the_numbers_of_the_simulation(tmp_path: Path) -> None:
    """Play an experiment, then every row of ALGORITHMS in the fewest rounds that show its state."""
    with Deployment(tmp_path / "d", secure=True) as deployment:
        for number in range(3):
            key = make_key(tmp_path, f"site{number}")
            deployment.flwr("supernode", "register", str(key.with_suffix(".pub")), NAME)
            deployment.start_site(number, key)
        # Both are refused: a key that nobody registered, and an authority that is not ours.
        deployment.start_site(7, make_key(tmp_path, "stranger"), tries=2)
        other = make_authority(tmp_path, "other")
        deployment.start_site(8, key, root=other, tries=2)

        more = (*DIGITS, "algorithm=episode", "algorithm.momentum=0.5", "budget.rounds=1")
        run = tmp_path / "run"
        number = deployment.run(write(tmp_path / "app", *more), [f'folder="{run}"'])
        until((run / "summary.json").exists, SECONDS, deployment.log)
        assert deployment.wait(number, 60) == "finished:completed"
        same(run, expected(*more))
        assert [r["cohort"] for r in read_rounds(run / "rounds.jsonl")] == [[0, 1, 2]]

        found = tmp_path / "found"
        found.mkdir()
        number = deployment.run(write_every_algorithm(tmp_path / "every"), [f'folder="{found}"'])
        for name in ALGORITHMS:
            until((found / name).exists, SECONDS, deployment.log)
            assert (found / name).read_text() == "0.0", name
        assert deployment.wait(number, 60) == "finished:completed"

        for refused in (7, 8):
            assert deployment.nodes[refused].wait(timeout=60) != 0, deployment.log(
                f"site-{refused}"
            )
        listed = json.dumps(deployment.flwr("supernode", "list", NAME))
        assert listed.count('"online"') == 3, listed


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.fault(engine="Flower", phase=("probe", "local"), fault="SIGKILL", outcome=GOES_ON)
@pytest.mark.fault(engine="Flower", phase="local", fault="SIGSTOP", outcome=GOES_ON)
def test_sites_killed_in_each_phase_and_one_that_never_answers(tmp_path: Path) -> None:
    four = ("task.curvatures=[1.0, 2.0, 0.5, 3.0]", "task.slopes=[-3.0, 4.0, 1.0, 2.0]")
    more = (*four, "engine.min_replies=1", "engine.timeout_seconds=30")
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
        # Either our deadline ends the wait, or Flower, which misses the heartbeat after a minute.
        silent = r"(did not reply within|failed to report a heartbeat).* in the local phase"
        assert re.search(silent, rounds[1]["missing"]["1"])
        gone = Without(((0, 3), (0, 2), (1, 3), (1, 2), (1, 1)))
        same(run, expected(*more, cohorts=gone))


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.fault(engine="Flower", phase="local", fault="SIGKILL", outcome=RESUMES)
def test_a_killed_serverapp_a_stopped_run_and_a_killed_superlink_change_nothing(
    tmp_path: Path,
) -> None:
    more = ("algorithm=scaffold_clipped", "algorithm.momentum=0.5", "budget.rounds=4")
    with Deployment(tmp_path / "d") as deployment:
        app = write(tmp_path / "app", *more, faulty=True)
        run = tmp_path / "run"

        def begin_and_halt_in(round: int) -> str:
            """Start the run and return once a site is at work in that round, where it stays."""
            mark = order(deployment, 0, "local", round)
            number = deployment.run(app, [f'folder="{run}"'])
            until(mark.exists, SECONDS, deployment.log)
            assert len(read_rounds(run / "rounds.jsonl") if round else []) == round
            return number

        for number in range(3):
            deployment.start_site(number)
        first = begin_and_halt_in(1)
        server = deployment.serverapp()
        assert server is not None
        deployment.kill(server)
        assert deployment.wait(first, 120) != "finished:completed"

        second = begin_and_halt_in(2)
        deployment.flwr("stop", second, NAME)
        assert deployment.wait(second, 120) != "finished:completed"

        begin_and_halt_in(3)
        deployment.kill_superlink()
        assert not (run / "summary.json").exists()
        deployment.start_superlink()
        for number in range(3):
            deployment.kill_site(number)
            deployment.start_site(number)

        order(deployment, 0, "local", -1)  # nowhere
        # Without node keys these are other nodes, and the checkpoint has the sites' memories.
        refused = deployment.run(app, [f'folder="{run}"'])
        assert deployment.wait(refused, SECONDS) != "finished:completed"
        reason = read_json(run / "summary.json")["reason"]
        assert "which belongs to another node: start that site with the node key" in reason
        last = deployment.run(app, [f'folder="{run}"', "engine.allow_takeover=true"])
        assert deployment.wait(last, SECONDS) == "finished:completed", deployment.log()
        same(run, expected(*more))
        assert [r["round"] for r in read_rounds(run / "rounds.jsonl")] == [0, 1, 2, 3]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.fault(engine="Flower", phase="local", fault="SIGKILL", outcome=RESUMES)
def test_with_keys_a_restarted_site_keeps_its_place_and_nobody_else_gets_it(tmp_path: Path) -> None:
    more = ("algorithm=scaffold_clipped", "algorithm.momentum=0.5", "budget.rounds=3")
    with Deployment(tmp_path / "d", secure=True) as deployment:
        keys = {number: make_key(tmp_path, f"site{number}") for number in (0, 1, 2, 7)}
        for key in keys.values():
            deployment.flwr("supernode", "register", str(key.with_suffix(".pub")), NAME)
        for number in range(3):
            deployment.start_site(number, keys[number])
        run = tmp_path / "run"
        app = write(tmp_path / "app", *more, "engine.timeout_seconds=120", faulty=True)
        mark = order(deployment, 1, "local", 1)
        started = deployment.run(app, [f'folder="{run}"'])
        until(mark.exists, SECONDS, deployment.log)
        before = read_json(run / "sites.json")
        deployment.kill_site(1)
        order(deployment, 0, "local", -1)  # nowhere: go on

        def online() -> int:
            return json.dumps(deployment.flwr("supernode", "list", NAME)).count('"online"')

        # The SuperLink accepts the key again once the dead node has missed its heartbeat.
        until(lambda: online() == 2, SECONDS, deployment.log)
        deployment.start_site(7, keys[7], partition=1)  # registered, but it is not site 1
        until(lambda: online() == 3, SECONDS, deployment.log)
        deployment.start_site(1, keys[1])
        assert deployment.wait(started, SECONDS) == "finished:completed", deployment.log()
        same(run, expected(*more))
        assert read_json(run / "sites.json") == before
        assert [r["cohort"] for r in read_rounds(run / "rounds.jsonl")] == [[0, 1, 2]] * 3
