"""Proof that data stay at home: server and sites are different users of the system."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from deployment import BIN, NAME, Deployment, free_port, make_key
from other_users import FIRST_USER, as_user, needs_root
from test_own_data import NAMES, experiment, model_in, write_notes

from episode.flower.app_files import write_app
from episode.results.store import read_run
from episode.runs.trainer import job_of, train

SERVER = FIRST_USER
SECONDS = 400.0


@dataclass
class ApartDeployment(Deployment):
    """A SuperLink and sites that run as users of their own, each with a home of its own."""

    secure: bool = True

    def __enter__(self) -> ApartDeployment:
        self.homes = self.folder / "homes"
        for user in range(SERVER, SERVER + 1 + self.sites):
            home = self.homes / str(user)
            home.mkdir(parents=True)
            own(home, user)
        super().__enter__()
        return self

    def start_superlink(self) -> None:
        own(self.folder / "home", SERVER)
        own(self.folder / "server.key", SERVER)
        (self.folder / "ca.pem").chmod(0o644)
        (self.folder / "server.pem").chmod(0o644)
        super().start_superlink()

    def start_own_site(self, number: int, data: Path) -> None:
        """Start a site with the command that its operator would give."""
        user = SERVER + 1 + number
        key = make_key(self.homes / str(user), "key")
        public = shutil.copy(key.with_suffix(".pub"), self.folder / f"site{number}.pub")
        own(key, user)
        os.chmod(public, 0o644)
        self.flwr("supernode", "register", str(public), NAME)
        command = [sys.executable, "-m", "episode", "flower", "site", "--data", str(data)]
        command += ["--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port())]
        command += ["--number", str(number), "--of", str(self.sites), "--key", str(key)]
        command += ["--root-certificates", str(self.authority)]
        self.nodes[number] = self._start(command, f"site-{number}.log", self._mark_of(number))

    def by_operator(self, command: list[str]) -> list[str]:
        return as_user(SERVER, command)

    def operator_environment(self) -> dict[str, str]:
        return self._environment_of(SERVER)

    def _environment_of(self, user: int) -> dict[str, str]:
        home = self.homes / str(user)
        flower = self.folder / "home" if user == SERVER else home / "flower"
        own_places = {"HOME": home, "FLWR_HOME": flower, "EPISODE_HOME": home / "episode"}
        return {**self.environment, **{name: str(path) for name, path in own_places.items()}}

    def _start(
        self, command: Sequence[str], log: str, mark: str | None = None
    ) -> subprocess.Popen[bytes]:
        number = log.removesuffix(".log").rpartition("-")[2]
        user = SERVER + 1 + int(number) if number.isdigit() else SERVER
        program = command[0] if Path(command[0]).is_absolute() else str(BIN / command[0])
        with (self.folder / log).open("ab") as file:
            return subprocess.Popen(
                as_user(user, [program, *command[1:]]),
                env={**self._environment_of(user), "EPISODE_TEST": mark or self.mark},
                cwd=self.homes / str(user),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


def own(path: Path, user: int) -> None:
    """Make a file or folder that only this user can read."""
    os.chown(path, user, user)
    path.chmod(0o700 if path.is_dir() else 0o600)
    if path.is_dir():
        for inner in path.iterdir():
            own(inner, user)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody can enter, which pytest's own are not."""
    folder = Path(tempfile.mkdtemp(prefix="episode-users-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder)


@needs_root
@pytest.mark.long
@pytest.mark.timeout(900)
def test_users_who_can_read_only_their_own_folder_train_what_a_simulation_of_all_does(
    place: Path,
) -> None:
    chosen = experiment("budget.rounds=2", "engine.timeout_seconds=120")
    silos = write_notes(place / "silos")
    silos.chmod(0o711)
    whole = train(job_of(experiment("budget.rounds=2", f"task.data={silos}")))
    for number, name in enumerate(NAMES):
        own(silos / name, SERVER + 1 + number)
    for user in range(SERVER, SERVER + 4):
        readable = [
            name
            for name in NAMES
            if subprocess.run(
                as_user(user, ["cat", str(silos / name / "notes.csv")]),
                capture_output=True,
                check=False,
            ).returncode
            == 0
        ]
        assert readable == list(NAMES[user - SERVER - 1 : user - SERVER])
    (place / "d").mkdir(mode=0o711)
    with ApartDeployment(place / "d") as deployment:
        app = deployment.homes / str(SERVER) / "app"
        write_app(app, chosen)
        own(app, SERVER)
        for number, name in enumerate(NAMES):
            deployment.start_own_site(number, silos / name)
        run = deployment.homes / str(SERVER) / "run"
        number = deployment.run(app, [f'folder="{run}"'])
        status = deployment.wait(number, SECONDS)
        assert status == "finished:completed", deployment.log()
        assert torch.equal(model_in(run), whole.x)
        assert read_run(run).summary["metrics"] == whole.summary["metrics"]
        assert (run / "config.json").stat().st_uid == SERVER
