"""Keys that the server cannot swap, evaluation as a sum, and sites that are told by a config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from deployment import make_key
from flwr.app import Message
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from local_grid import LocalGrid
from masked_grid import SITES, securely, sites, step_of
from test_own_data import experiment, folders, grid_of, model_in, play, write_notes
from typer.testing import CliRunner

from episode import EpisodeError
from episode.cli.main import app as command_line
from episode.errors import ClusterError
from episode.flower.secure.keys import KeyShare, fingerprint, read_node_key
from episode.results.store import read_run
from episode.runs.trainer import job_of, train


def with_keys(folder: Path, listed: dict[int, str] | None = None, without: int = -1) -> LocalGrid:
    """Return sites that have node keys, and a list of them with some lines changed."""
    network = sites()
    lines = {}
    for client in range(SITES):
        key = make_key(folder, f"site{client}")
        public = read_node_key(str(key)).public_key()
        lines[client] = fingerprint(public)
        network.keys[1000 + client] = public_key_to_bytes(public)
        config: Any = network.contexts[1000 + client].node_config
        if client != without:
            config["node-key"] = str(key)
        config["fingerprints"] = str(folder / "list")
    lines |= listed or {}
    text = "".join(f"{client} {line}  # a site\n" for client, line in lines.items())
    (folder / "list").write_text("# all sites\n\n" + text)
    return network


def test_sites_that_know_each_others_keys_give_the_same_model(tmp_path: Path) -> None:
    known, plain = securely(grid=with_keys(tmp_path)).model, securely().model
    assert all(torch.equal(known[name], plain[name]) for name in known)


def test_the_fingerprint_is_that_of_ssh_keygen() -> None:
    text = (
        b"ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBEmKSENjQEezOmxkZ"
        b"My7opKgwFB9nkt5YRrYMjNuG5N87uRgg6CLrbo5wAdT/y6v0mKV0U2w0WZ2YB/++Tpockg= comment"
    )
    key: Any = serialization.load_ssh_public_key(text)
    assert fingerprint(key) == "SHA256:p2QAMXNIC1TJYWeIOttrVc98/R1BUFWu3/LiyKgUfQM"


def test_a_server_that_passes_on_a_key_of_its_own_is_refused(tmp_path: Path) -> None:
    network = with_keys(tmp_path)
    swapped: list[int] = []

    def swap(client: int, reply: Message) -> Message:
        """Give the others a key of which the server has the private half."""
        if client == 2 and step_of(network.sent[-1]) == ("probe", 0):
            swapped.append(1)
            label = reply.content.config_records["episode.answer"]
            label["public"] = KeyShare.new(1, 2, None)[1].public
        return reply

    with pytest.raises(ClusterError, match=r"key of site 2 is signed by a signature .* not valid"):
        securely(grid=network, fault=swap, retries=0)
    assert swapped


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"without": 1}, "Site 1 has a list of fingerprints, but no node key of its own"),
        ({"listed": {1: "SHA256:other"}}, "node key of site 1 has the fingerprint SHA256:.*says"),
        ({"listed": {1: "MD5:x"}}, "Line 4 of .*/list is '1 MD5:x.*write the site's number"),
    ],
)
def test_a_list_that_does_not_fit_is_named_before_round_0(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(EpisodeError, match=f"before round 0: .*{message}"):
        securely(grid=with_keys(tmp_path, **changes), start_seconds=0.5)


def test_a_site_signs_with_the_key_that_it_is_registered_by(tmp_path: Path) -> None:
    network = with_keys(tmp_path)
    network.keys[1003] = b"another key"
    with pytest.raises(ClusterError, match="site 3 signs its keys with another key than the one"):
        securely(grid=network, retries=0, start_seconds=0.3)


def test_sites_without_a_list_say_what_that_means(caplog: pytest.LogCaptureFixture) -> None:
    securely(rounds=1)
    assert "a server that lies about the keys of other sites could read" in caplog.text


def test_a_config_alone_makes_a_run_secure_and_its_evaluation_a_sum(tmp_path: Path) -> None:
    root = write_notes(tmp_path / "silos")
    whole = train(job_of(experiment(f"task.data={root}")))
    chosen = experiment("engine.secure=true")
    network, texts = grid_of(chosen, folders(root)), list[str]()

    def watch(client: int, reply: Message) -> Message:
        texts.append(str(reply.content.config_records["episode.answer"].get("evaluation")))
        return reply

    network.fault = watch
    play(chosen, network, tmp_path / "run")
    assert torch.allclose(model_in(tmp_path / "run"), whole.x, rtol=0, atol=1e-6)
    expected = [r["metrics"] for r in whole.history if "metrics" in r]
    found = [r["metrics"] for r in read_run(tmp_path / "run").rounds if "metrics" in r]
    for mine, open_ones in zip(found, expected, strict=True):
        assert mine == pytest.approx(open_ones, abs=1e-5)
    assert set(texts) == {"None"}, "no site has told its own evaluation"
    assert not (tmp_path / "run" / "clients.jsonl").exists()


def test_other_engines_say_that_they_cannot_be_secure() -> None:
    with pytest.raises(EpisodeError, match=r"engine.secure is true, but engine.name is 'simulati"):
        train(job_of(experiment("engine.secure=true", "task=digits", "task.time_steps=4")))


def test_the_site_command_passes_the_settings_on(tmp_path: Path) -> None:
    key, listed = make_key(tmp_path, "site0"), tmp_path / "list"
    listed.write_text("0 SHA256:abc\n")
    base = ["flower", "site", "--superlink", "host:1", "--number", "0", "--of", "3", "--insecure"]
    more = ["--key", str(key), "--secure", "--fingerprints", str(listed), "--state", str(tmp_path)]
    done = CliRunner().invoke(command_line, [*base, *more, "--dry-run"])
    assert done.exit_code == 0, done.output
    for part in ("secure=true", "min-cohort=3", f'node-key="{key}"', f'fingerprints="{listed}"'):
        assert part in done.output
    wrong = CliRunner().invoke(command_line, [*base, "--state", str(tmp_path), "--dry-run"])
    assert isinstance(wrong.exception, EpisodeError)
    assert "are for --secure" in str(wrong.exception)
