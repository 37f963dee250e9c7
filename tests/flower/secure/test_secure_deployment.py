"""A secure run of real processes on loopback: TLS, node keys, fingerprints, and SIGKILL."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from deployment import NAME, Deployment, make_key
from masked_grid import fresh_batches
from test_deployment import SECONDS, expected, order, until, write

from episode.federation import checkpoint
from episode.flower.secure.keys import fingerprint, read_node_key
from episode.results.store import CHECKPOINT, read_json, read_rounds
from federation import Without

FOUR = ("task.curvatures=[1.0, 2.0, 0.5, 3.0]", "task.slopes=[-3.0, 4.0, 1.0, 2.0]")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_secure_deployment_goes_on_without_a_killed_site(tmp_path: Path) -> None:
    more = (*FOUR, "algorithm.momentum=0.5", "engine.min_replies=3")
    with Deployment(tmp_path / "d", sites=4, secure=True) as deployment:
        keys = [make_key(tmp_path, f"site{number}") for number in range(4)]
        prints = [fingerprint(read_node_key(str(key)).public_key()) for key in keys]
        listed = tmp_path / "list"
        listed.write_text("".join(f"{k} {text}\n" for k, text in enumerate(prints)))
        for number, key in enumerate(keys):
            deployment.flwr("supernode", "register", str(key.with_suffix(".pub")), NAME)
            config = f'secure=true node-key="{key}" fingerprints="{listed}" state="{tmp_path}/own"'
            deployment.start_site(number, key, config=config)
        app = write(tmp_path / "app", *more, "engine.secure=true", faulty=True)
        run = tmp_path / "run"
        mark = order(deployment, 3, "local", 1)
        started = deployment.run(app, [f'folder="{run}"'])
        until(mark.exists, SECONDS, deployment.log)
        deployment.kill_site(3)
        until((run / "summary.json").exists, SECONDS, deployment.log)
        assert deployment.wait(started, 60) == "finished:completed"
        rounds = read_rounds(run / "rounds.jsonl")
        assert [r["cohort"] for r in rounds] == [[0, 1, 2, 3], [0, 1, 2]]
        assert "in the local phase" in rounds[1]["missing"]["3"]
        with fresh_batches({1}):
            x = expected(*more, cohorts=Without(((1, 3),)))
        identity = read_json(run / "config.json")["id"]
        server, _ = checkpoint.load(run / CHECKPOINT, identity, "cpu")
        assert torch.allclose(server.x, x, rtol=0, atol=1e-8)
        assert sorted(p.name for p in (tmp_path / "own").iterdir())[0] == "site-0.safetensors"
        # Sites that were started with --secure answer nothing in the open.
        opened = deployment.run(app, [f'folder="{tmp_path / "open"}"', 'engine.secure=""'])
        assert deployment.wait(opened, SECONDS) != "finished:completed"
        assert "started with --secure" in read_json(tmp_path / "open" / "summary.json")["reason"]
