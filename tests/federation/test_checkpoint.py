"""A checkpoint is read as it was written, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from episode.errors import EpisodeError
from episode.federation import checkpoint
from episode.federation.state import Buffers, ClientState, Counts, ServerState


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
    with pytest.raises(EpisodeError, match=r"state\.safetensors is damaged"):
        checkpoint.load(file, "mine", "cpu")


def header_of(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as opened:
        header: dict[str, Any] = json.loads(opened.metadata()["episode"])
    return header


def test_another_round_in_the_header_is_noticed(file: Path) -> None:
    header = header_of(file)
    assert header["round"] == 3
    save_file(load_file(file), file, {"episode": json.dumps(header | {"round": 2})})
    with pytest.raises(EpisodeError, match=r"state\.safetensors is damaged: remove"):
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
    with pytest.raises(EpisodeError, match=r"state\.safetensors is damaged: remove"):
        checkpoint.load(file, "mine", "cpu")


def test_all_that_the_server_holds_comes_back(tmp_path: Path) -> None:
    buffers = Buffers(torch.rand(2), torch.tensor([5]))
    kept = {"memory": torch.rand(3), "velocity": torch.rand(3), "outer": {"m": torch.rand(3)}}
    counts = Counts(1, 2, 3, 4, 5.5)
    server = ServerState(torch.rand(3), buffers, 7, **kept, counts=counts)
    path, client = tmp_path / "state.safetensors", ClientState(memory=torch.rand(3))
    checkpoint.save(path, server, {1: client}, "mine", records={"rounds.jsonl": 9})
    found, clients = checkpoint.load(path, "mine", "cpu")
    assert (found.round, found.counts) == (7, counts)
    for name in ("x", "memory", "velocity"):
        assert torch.equal(getattr(found, name), getattr(server, name))
    assert torch.equal(found.outer["m"], kept["outer"]["m"])
    assert torch.equal(found.buffers.floats, buffers.floats)
    assert found.buffers.integers.tolist() == [5]
    assert list(clients) == [1]
    assert clients[1].tensors().keys() == {"memory"}
    assert checkpoint.records_of(path) == {"rounds.jsonl": 9}


def test_the_format_and_the_identity_are_those_of_the_reader(file: Path) -> None:
    with pytest.raises(EpisodeError, match=r"state.safetensors belongs to another configuration"):
        checkpoint.load(file, "yours", "cpu")
    tensors, header = load_file(file), header_of(file) | {"format": 2}
    save_file(tensors, file, {"episode": json.dumps(header)})
    with pytest.raises(EpisodeError, match=r"has format 2, and this version reads format 3"):
        checkpoint.load(file, "mine", "cpu")


def test_the_same_bytes_in_another_type_or_shape_have_another_checksum() -> None:
    zeros = [torch.zeros(4), torch.zeros(4, dtype=torch.int32), torch.zeros(2, 2)]
    assert len({checkpoint._checksum({}, {"x": tensor}) for tensor in zeros}) == 3


def test_what_a_killed_writer_left_is_overwritten_and_nothing_else_stays(file: Path) -> None:
    left = file.with_name("state.safetensors.tmp")
    left.write_bytes(b"half a checkpoint")
    checkpoint.write_tensors(file, {"x": torch.ones(2)})
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert load_file(file)["x"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("is_removed", "says"),
    [(False, "what was there before is intact"), (True, "its folder is gone")],
)
def test_a_checkpoint_that_cannot_be_written_says_what_is_left(
    is_removed: bool, says: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        if is_removed:
            shutil.rmtree(file.parent)
        raise SafetensorError("no space")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match=rf"state.safetensors cannot be written \(no space\); {says}"):
        checkpoint.write_tensors(file, {"x": torch.ones(2)})


def parts(folder: Path, round: int = 3, previous: int = 2, ranks: int = 2) -> list[str]:
    """Write the part of each rank: rank k holds client k."""
    return [
        checkpoint.save_part(
            folder,
            {rank: ClientState(memory=torch.full((3,), float(rank)))},
            "mine",
            (rank, ranks),
            round,
            previous,
        )
        for rank in range(ranks)
    ]


def complete(folder: Path, names: list[str], owners: int | None = None, round: int = 3) -> Path:
    path = folder / "state.safetensors"
    server = ServerState(torch.ones(3), round=round)
    checkpoint.save(path, server, {}, "mine", names, owners)
    return path


def test_the_parts_of_all_ranks_make_one_checkpoint(tmp_path: Path) -> None:
    names = parts(tmp_path)
    assert names == [f"clients-3-rank-{rank}-of-2.safetensors" for rank in range(2)]
    path = complete(tmp_path, [*names], owners=5)
    everyone = checkpoint.load(path, "mine", "cpu")[1]
    assert [everyone[client].memory[0].item() for client in everyone] == [0, 1]
    for given, expected in (
        ({"place": (1, 2), "owners": 5}, [1]),
        ({"place": (1, 2), "owners": 6}, [0, 1]),  # clients have moved
        ({"place": (1, 3), "owners": 5}, [0, 1]),  # other ranks
        ({"place": (1, 2)}, [0, 1]),
    ):
        assert list(checkpoint.load(path, "mine", "cpu", **given)[1]) == expected
    (tmp_path / "here").mkdir()
    moved = tmp_path / "here" / path.name
    path.rename(moved)
    assert list(checkpoint.load(moved, "mine", "cpu", parts_in=tmp_path)[1]) == [0, 1]


def test_a_part_that_is_missing_old_or_of_another_run_is_refused(tmp_path: Path) -> None:
    names = parts(tmp_path)
    with pytest.raises(EpisodeError, match=r"clients-3-rank-0-of-2.safetensors is damaged"):
        checkpoint.load(complete(tmp_path, names, round=4), "mine", "cpu")
    path = complete(tmp_path, names)
    (tmp_path / names[1]).unlink()
    with pytest.raises(EpisodeError, match=r"needs .*rank-1-of-2.safetensors, which is not there"):
        checkpoint.load(path, "mine", "cpu")
    assert list(checkpoint.load(path, "mine", "cpu", place=(0, 2))[1]) == [0]


def test_a_rank_removes_its_own_parts_of_older_checkpoints(tmp_path: Path) -> None:
    for r in (1, 2, 3):
        parts(tmp_path, r, r - 1)
    (tmp_path / "clients-1-rank-0-of-3.safetensors").touch()  # not of this number of ranks
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["clients-1-rank-0-of-3.safetensors"] + [
        f"clients-{r}-rank-{rank}-of-2.safetensors" for r in (2, 3) for rank in (0, 1)
    ]
    checkpoint.keep_only(tmp_path, left[3:])
    assert sorted(path.name for path in tmp_path.iterdir()) == left[3:]
    assert checkpoint.save_part(tmp_path, {}, "mine", (0, 2), 4, 3) == ""


def test_a_file_that_somebody_else_removes_first_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "clients-0-rank-0-of-2.safetensors"
    monkeypatch.setattr(Path, "glob", lambda *_: [gone])
    checkpoint.keep_only(tmp_path, [])
    assert checkpoint.save_part(tmp_path, {}, "mine", (0, 2), 4, 3) == ""
