"""Somebody with ca.pem who reaches the sites' port can neither register a node nor run an app."""

from __future__ import annotations

import http.client
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gate
import pytest
from deployment import BIN, NAME, Deployment, make_key
from test_deployment import SECONDS, expected, same, write

OUTSIDE = "outside"
SECRET_PATHS = [
    "/v1/control/start-run",
    "/v1/control/register-node",
    "/v1/control/list-runs",
    "/v1/runtime/acquire-task",
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/..%2fcontrol/list-runs",
    "//v1/control/list-runs",
    "/v1/control/list-runs?/v1/fleet/get-run",
    "/docs",
    "/openapi.json",
    "/",
]


@contextmanager
def door(kind: str, deployment: Deployment) -> Iterator[int]:
    """Open a front door, and let Flower's config name it."""
    opened = gate.python(deployment)
    if kind == "nginx":
        assert gate.NGINX is not None
        opened = gate.nginx(deployment, gate.NGINX)
    with opened as port:
        with (deployment.folder / "home" / "config.toml").open("a") as file:
            file.write(f'\n[superlink.{OUTSIDE}]\naddress = "127.0.0.1:{port}"\n')
            file.write(f'root-certificates = "{deployment.authority}"\n')
        yield port


def flwr(deployment: Deployment, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "flwr"), *arguments],
        env=deployment.environment,
        cwd=deployment.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def status(deployment: Deployment, port: int, path: str) -> int:
    """Return what is answered to an empty request, whose path is sent as it is."""
    trust = ssl.create_default_context(cafile=deployment.authority)
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=60)
    connection.request("POST", path, b"", {"Content-Type": "application/protobuf"})
    found = connection.getresponse().status
    connection.close()
    return found


def nodes(deployment: Deployment) -> list[Any]:
    found = deployment.flwr("supernode", "list", NAME)
    return list(found["nodes"])


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "kind",
    [
        "python",
        pytest.param(
            "nginx",
            marks=pytest.mark.skipif(gate.NGINX is None, reason="nginx is not installed"),
        ),
    ],
)
def test_who_has_the_certificate_cannot_use_the_operators_interface(
    kind: str, tmp_path: Path
) -> None:
    more = ("algorithm=episode", "budget.rounds=1")
    app = write(tmp_path / "app", *more)
    cold = Deployment(tmp_path / "d", secure=True, warm=False)  # as Flower starts processes
    with cold as deployment, door(kind, deployment) as port:
        for number in range(3):
            key = make_key(tmp_path, f"site{number}")
            deployment.flwr("supernode", "register", str(key.with_suffix(".pub")), NAME)
            deployment.start_site(number, key, port=port)
        stranger = make_key(tmp_path, "stranger")
        register = ("supernode", "register", str(stranger.with_suffix(".pub")))
        for attack in ((*register, OUTSIDE), ("run", str(app), OUTSIDE), ("list", OUTSIDE)):
            tried = flwr(deployment, *attack)
            assert tried.returncode != 0, tried.stdout
        assert len(nodes(deployment)) == 3
        assert deployment.flwr("list", NAME)["runs"] == []
        for path in SECRET_PATHS:
            assert status(deployment, port, path) == 403, path
        # The SuperLink itself does not refuse it to somebody on its own host.
        assert status(deployment, deployment.port, "/v1/control/list-runs") == 200
        deployment.start_site(7, stranger, port=port, tries=2)
        assert deployment.nodes[7].wait(timeout=120) != 0, deployment.log("site-7")

        run = tmp_path / "run"
        number = deployment.run(app, [f'folder="{run}"'])
        assert deployment.wait(number, SECONDS) == "finished:completed", deployment.log()
        same(run, expected(*more))
