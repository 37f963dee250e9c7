"""Start a SuperLink and SuperNodes as processes on loopback, and end all of them afterwards."""

from __future__ import annotations

import datetime
import ipaddress
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
NAME = "here"
READY = "Starting Flower SuperExec"
"""What a site logs once it has imported everything that a warm one imports."""


@dataclass
class Deployment:
    """One SuperLink and its sites, which are started by number; leaving the context ends all."""

    folder: Path
    sites: int = 3
    secure: bool = False
    simulation: bool = False
    """Whether the SuperLink simulates its sites."""
    warm: bool = True
    """Whether a site imports torch, flwr and episode once, and not again for each message."""
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    nodes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __enter__(self) -> Deployment:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.ray = tempfile.mkdtemp(prefix="r", dir="/tmp")  # short: it holds sockets
        home = self.folder / "home"
        home.mkdir()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PYTEST")},
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": f"{HERE}:{os.environ.get('PYTHONPATH', '')}".rstrip(":"),
            "FLWR_HOME": str(home),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "RAY_TMPDIR": self.ray,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "200",
            "EPISODE_TEST": self.mark,
        }
        warm = self.folder / "warm"
        warm.mkdir()
        command = f'exec "{sys.executable}" "{HERE}/programs/warm_superexec.py" "$@"'
        (warm / "flower-superexec").write_text(f"#!/bin/sh\n{command}\n")
        (warm / "flower-superexec").chmod(0o755)
        safety = ["--insecure"]
        connection = "insecure = true"
        if self.secure:
            self.authority = make_authority(self.folder)
            safety = ["--ssl-ca-certfile", str(self.authority)]
            safety += ["--ssl-certfile", str(self.folder / "server.pem")]
            safety += ["--ssl-keyfile", str(self.folder / "server.key")]
            safety += ["--enable-supernode-auth"]
            connection = f'root-certificates = "{self.authority}"'
        if self.simulation:
            connection += f"\noptions.num-supernodes = {self.sites}"
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
            f'address = "127.0.0.1:{self.port}"\n{connection}\n'
        )
        command = ["flower-superlink", *safety, "--disable-runtime-dependency-installation"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        self._command = command + (["--simulation"] if self.simulation else [])
        self.start_superlink()
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    def start_superlink(self) -> None:
        self.superlink = self._start(self._command, "superlink.log")
        try:
            self._wait_for_port()
        except BaseException:
            self.end()
            raise

    def kill_superlink(self) -> None:
        """Kill it with SIGKILL; the processes that it has started must end by themselves."""
        self.superlink.kill()
        self.superlink.wait(timeout=30)
        until = time.monotonic() + 120
        while left := self.processes().keys() - self.processes(f"{self.mark}-site-").keys():
            commands = self.processes()
            assert time.monotonic() < until, [commands.get(pid) for pid in left]
            time.sleep(0.2)

    def start_site(
        self,
        number: int,
        key: Path | None = None,
        root: Path | None = None,
        tries: int = 0,
        partition: int | None = None,
        config: str = "",
        port: int | None = None,
    ) -> None:
        """Start a SuperNode, with a registered key if the deployment is secure.

        Its partition id is its number, and it connects to the SuperLink's port, unless another is
        given; `config` is more of its settings.
        """
        partition = number if partition is None else partition
        safety = ["--insecure"]
        if self.secure:
            safety = ["--root-certificates", str(root or self.authority)]
            if key is not None:
                safety += ["--auth-supernode-private-key", str(key)]
        command = ["flower-supernode", *safety, "--superlink", f"127.0.0.1:{port or self.port}"]
        command += ["--host", "127.0.0.1", "--port", str(free_port())]
        command += ["--max-retries", str(tries)] if tries else []
        place = f"partition-id={partition} num-partitions={self.sites}"
        command += ["--node-config", f"{place} {config}".strip()]
        (self.folder / f"site-{number}.log").unlink(missing_ok=True)
        self.nodes[number] = self._start(command, f"site-{number}.log", self._mark_of(number))

    def wait_for_sites(self) -> None:
        """Wait until every site that has not ended is ready for messages."""
        until = time.monotonic() + 180
        for number, node in self.nodes.items():
            while node.poll() is None and READY not in self.log(f"site-{number}"):
                assert time.monotonic() < until, self.log(f"site-{number}")
                time.sleep(0.1)

    def kill_site(self, number: int) -> None:
        """Kill a SuperNode and the processes that it runs, which are in other sessions."""
        process = self.nodes.pop(number)
        process.kill()
        _kill(self.processes(self._mark_of(number)))
        process.wait(timeout=30)

    def kill(self, pid: int) -> None:
        """Kill one process of this deployment."""
        _kill({pid: ""})

    def stop_site(self, number: int) -> None:
        """Stop a SuperNode with SIGSTOP: it stays connected, but never answers."""
        for pid in self.processes(self._mark_of(number)):
            os.kill(pid, signal.SIGSTOP)

    def flwr(self, *arguments: str, timeout: float = 120) -> dict[str, Any]:
        command = [str(BIN / "flwr"), *arguments, "--format", "json"]
        done = subprocess.run(
            self.by_operator(command),
            env=self.operator_environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        start = done.stdout.find("{")
        assert start >= 0, done.stdout + done.stderr
        found: dict[str, Any] = json.loads(done.stdout[start:])
        return found

    def by_operator(self, command: list[str]) -> list[str]:
        """Return a command that runs this one as the server's operator."""
        return command

    def operator_environment(self) -> dict[str, str]:
        return self.environment

    def run(self, app: Path, changes: Sequence[str] = ()) -> str:
        """Start a run, once the sites are ready for messages, and return its number."""
        self.wait_for_sites()
        options = [part for change in changes for part in ("-c", change)]
        found = self.flwr("run", str(app), NAME, *options)
        assert "run-id" in found, found
        return str(found["run-id"])

    def status(self, number: str) -> str:
        return str(self.flwr("list", NAME, "--run-id", number)["runs"][0]["status"])

    def wait(self, number: str, seconds: float) -> str:
        """Wait for the end of a run and return its status."""
        until = time.monotonic() + seconds
        while not (status := self.status(number)).startswith("finished"):
            assert time.monotonic() < until, f"{status} after {seconds} s:\n{self.log()}"
            time.sleep(4.0)  # each look starts a process
        return status

    def log(self, name: str = "superlink") -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def serverapp(self) -> int | None:
        """Return the process of the run's ServerApp."""
        for pid, command in self.processes().items():
            if "flwr-serverapp" in command:
                return pid
        return None

    def end(self) -> None:
        """End every process that carries our mark, by its id."""
        until = time.monotonic() + 20
        while (left := self.processes()) and time.monotonic() < until:
            _kill(left)
            for process in (*self.nodes.values(), self.superlink):
                process.poll()
            time.sleep(0.1)
        assert not left
        for process in (*self.nodes.values(), self.superlink):
            process.wait(timeout=10)
        shutil.rmtree(self.ray, ignore_errors=True)

    def _mark_of(self, number: int) -> str:
        return f"{self.mark}-site-{number}"

    def _start(
        self, command: Sequence[str], log: str, mark: str | None = None
    ) -> subprocess.Popen[bytes]:
        environment = {**self.environment, "EPISODE_TEST": mark or self.mark}
        if mark and self.warm:
            environment["PATH"] = f"{self.folder / 'warm'}:{environment['PATH']}"
        with (self.folder / log).open("ab") as file:
            return subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                env=environment,
                cwd=self.folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _wait_for_port(self) -> None:
        until = time.monotonic() + 90
        while time.monotonic() < until:
            with socket.socket() as s:
                if s.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.superlink.poll() is None, self.log()
            time.sleep(0.2)
        raise AssertionError(self.log())

    def processes(self, mark: str | None = None) -> dict[int, str]:
        """Return the processes with our mark in their environment, and their command lines."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (mark or self.mark).encode() in (path / "environ").read_bytes():
                    state = (path / "stat").read_text().rpartition(")")[2].split()[0]
                    command = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    if state != "Z":
                        found[int(path.name)] = command
            except OSError:
                continue
        return found


def _kill(processes: dict[int, str]) -> None:
    for pid in processes:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def make_authority(folder: Path, name: str = "ca") -> Path:
    """Make a certificate authority and a server certificate for loopback that it has signed."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"episode test {name}")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)

    def build(subject: x509.Name, key: Any) -> x509.CertificateBuilder:
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
        builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - day).not_valid_after(now + day)

    root = build(issuer, authority_key).add_extension(x509.BasicConstraints(True, None), True)
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    root = root.add_extension(usage, True)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    server = build(subject, server_key)
    server = server.add_extension(x509.SubjectAlternativeName(names), False)
    pem = serialization.Encoding.PEM
    path = folder / f"{name}.pem"
    path.write_bytes(root.sign(authority_key, hashes.SHA256()).public_bytes(pem))
    if name == "ca":
        signed = server.sign(authority_key, hashes.SHA256())
        (folder / "server.pem").write_bytes(signed.public_bytes(pem))
        (folder / "server.key").write_bytes(
            server_key.private_bytes(
                pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
    return path


def make_key(folder: Path, name: str) -> Path:
    """Make a site's key pair, as ssh-keygen -t ecdsa -b 384 does."""
    key = ec.generate_private_key(ec.SECP384R1())
    path = folder / name
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        )
    )
    path.with_suffix(".pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    )
    return path
