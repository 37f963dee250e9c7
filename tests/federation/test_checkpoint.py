"""A checkpoint is read as it was written, or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from episode.errors import EpisodeError
from episode.federation import checkpoint
from episode.federation.state import ClientState, ServerState


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "state.safetensors"
    server = ServerState(torch.ones(3), round=3, memory=torch.zeros(3))
    checkpoint.save(path, server, {1: ClientState(velocity=torch.ones(3))}, "mine")
    return path


def test_every_byte_of_a_checkpoint_counts(file: Path) -> None:
    """Whatever bit is flipped, the file is refused, or nothing but padding has changed."""
    good = file.read_bytes()
    header = len(good) - sum(t.nbytes for t in load_file(file).values())
    for place in range(len(good)):
        file.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        try:
            server, clients = checkpoint.load(file, "mine", "cpu")
        except EpisodeError:
            continue
        assert 8 < place < header
        assert (server.round, server.x.tolist(), list(clients)) == (3, [1, 1, 1], [1])


def test_what_a_server_step_keeps_is_in_the_checkpoint(tmp_path: Path) -> None:
    path, outer = tmp_path / "state.safetensors", {"m": torch.rand(3), "step": torch.tensor(7.0)}
    checkpoint.save(path, ServerState(torch.ones(3), round=3, outer=outer), {}, "mine")
    server, clients = checkpoint.load(path, "mine", "cpu")
    assert server.outer.keys() == outer.keys()
    assert all(torch.equal(server.outer[name], outer[name]) for name in outer)
    assert len(clients) == 0


def test_a_checkpoint_from_before_there_were_server_steps_is_read(file: Path) -> None:
    """It has no tensor of that kind, and neither has one of a server that takes the mean."""
    assert not any(name.startswith("server.outer") for name in load_file(file))
    assert checkpoint.load(file, "mine", "cpu")[0].outer == {}


@pytest.mark.timeout(60)
def test_a_pipe_is_refused_and_not_waited_for(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(EpisodeError, match="is damaged"):
        checkpoint.load(file, "mine", "cpu")


def header_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as opened:
        header: dict[str, Any] = json.loads(opened.metadata()["episode"])
    return header


def test_another_round_in_the_header_is_noticed(file: Path) -> None:
    header = header_of(file)
    assert header["round"] == 3
    save_file(load_file(file), file, {"episode": json.dumps(header | {"round": 2})})
    with pytest.raises(EpisodeError, match="is damaged: remove"):
        checkpoint.load(file, "mine", "cpu")


@pytest.mark.parametrize(
    "change",
    [
        {"round": "3"}, {"round": None}, {"round": -1}, {"round": True}, {"counts": {}},
        {"counts": {"exchanges": "many"}}, {"counts": {"lies": 3}}, {"counts": []}, {"parts": 3},
        {"parts": ["../state.safetensors"]}, {"parts": [3]}, {"identity": KeyError},
        {"round": KeyError}, {"counts": KeyError}, {"parts": KeyError}, {"checksum": KeyError},
        {"format": "x"}, {"format": KeyError},
    ],
)  # fmt: skip
def test_a_forged_header_is_one_sentence(change: dict[str, Any], file: Path) -> None:
    tensors, header = load_file(file), header_of(file) | change
    header = {key: value for key, value in header.items() if value is not KeyError}
    if header.pop("checksum", None):
        header["checksum"] = checkpoint._checksum(header, tensors)
    save_file(tensors, file, {"episode": json.dumps(header)})
    if change == {"counts": {}}:
        assert checkpoint.load(file, "mine", "cpu")[0].round == 3
        return
    with pytest.raises(EpisodeError, match=r"The checkpoint .* (is damaged|has format)"):
        checkpoint.load(file, "mine", "cpu")


@pytest.mark.parametrize("name", ["server.x", "server.buffers.floats", "client.1.velocity"])
def test_missing_and_strange_tensors_are_one_sentence(name: str, file: Path) -> None:
    tensors, header = load_file(file), header_of(file)
    del header["checksum"]
    tensors["strange"] = tensors.pop(name)
    header["checksum"] = checkpoint._checksum(header, tensors)
    save_file(tensors, file, {"episode": json.dumps(header)})
    with pytest.raises(EpisodeError, match="is damaged: remove"):
        checkpoint.load(file, "mine", "cpu")


@pytest.mark.parametrize("text", ["[]", "3", "null", "[" * 9999, "{"])
def test_a_header_that_is_no_table_is_one_sentence(text: str, file: Path) -> None:
    save_file(load_file(file), file, {"episode": text})
    with pytest.raises(EpisodeError, match="is damaged: remove"):
        checkpoint.load(file, "mine", "cpu")
