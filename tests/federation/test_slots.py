"""Vectors in a file of slots: whatever is written later, a checkpoint finds its own again."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from episode import EpisodeError
from episode.federation import checkpoint
from episode.federation.client_states import MappedStates
from episode.federation.slots import Layout, SlotFile
from episode.federation.state import ClientState, ServerState

KEYS, SIZE = 12, 5
LAYOUT = Layout(KEYS, SIZE, "float32")


def contents(file: SlotFile) -> dict[int, Tensor]:
    found = {key: file.read(key) for key in range(file.layout.keys)}
    return {key: vector for key, vector in found.items() if vector is not None}


def same(a: Mapping[int, Tensor], b: Mapping[int, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_vector_takes_turns_in_the_slots_of_two_checkpoints_and_its_own(tmp_path: Path) -> None:
    file = SlotFile(tmp_path / "rows", Layout(1, SIZE, "float32"))
    for _ in range(10):
        file.write(0, torch.rand(SIZE))
        file.table()
    file.close()
    assert (tmp_path / "rows").stat().st_size == 3 * SIZE * 4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_the_last_two_checkpoints_can_be_read_after_any_writes(seed: int, tmp_path: Path) -> None:
    """Random writes, checkpoints and restarts, checked after each as if killed there."""
    chance = random.Random(seed)
    path, copy = tmp_path / "rows", tmp_path / "copy"
    file, expected = SlotFile(path, LAYOUT), dict[int, Tensor]()
    tables: list[tuple[dict[str, Tensor], dict[int, Tensor]]] = []
    for _ in range(150):
        what = chance.random()
        if what < 0.8:
            key, vector = chance.randrange(KEYS), torch.rand(SIZE)
            file.write(key, vector)
            expected[key] = vector
        elif what < 0.95:
            tables = [*tables[-1:], (file.table(), dict(expected))]
        elif tables:  # killed, and started from one of the two: the last may be incomplete
            tables = [chance.choice(tables)]
            file.close()
            file, expected = SlotFile(path, LAYOUT, tables[0][0]), dict(tables[0][1])
        assert same(contents(file), expected)
        shutil.copy(path, copy)
        for table, vectors in tables:
            assert same(contents(SlotFile(copy, LAYOUT, table)), vectors)
    assert path.stat().st_size <= 3 * KEYS * SIZE * 4


def test_a_checkpoint_writes_only_what_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    pwrite = os.pwrite
    monkeypatch.setattr(
        os, "pwrite", lambda *given: written.append(len(given[1])) or pwrite(*given)
    )
    file = SlotFile(tmp_path / "rows", Layout(1000, 100, "float64"))
    for key in range(1000):
        file.write(key, torch.rand(100, dtype=torch.float64))
    file.table()
    assert sum(written) == 1000 * 800
    for _ in range(5):
        written.clear()
        for key in (3, 7, 3):
            file.write(key, torch.rand(100, dtype=torch.float64))
        file.table()
        assert sum(written) == 3 * 800
    assert (tmp_path / "rows").stat().st_size <= (1000 + 3 * 2) * 800


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_vectors_of_any_type_and_length_come_back_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    for size in (1, 3, 4096, 5001):  # slots that lie across pages
        file = SlotFile(tmp_path / "rows", Layout(7, size, dtype))
        vectors = [torch.randn(size).to(getattr(torch, dtype)) for _ in range(7)]
        for key, vector in enumerate(vectors):
            file.write(key, vector)
        again = SlotFile(tmp_path / "rows", Layout(7, size, dtype), file.table())
        assert again.keys == list(range(7))
        for key, vector in enumerate(vectors):
            assert torch.equal(file.read(key), vector)  # type: ignore[arg-type]
            assert torch.equal(again.read(key), vector)  # type: ignore[arg-type]


def test_a_file_is_made_with_its_folders_and_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "run" / "checkpoint" / "rows"
    SlotFile(path, LAYOUT).write(3, torch.ones(SIZE))
    file = SlotFile(path, LAYOUT)
    assert (file.keys, path.stat().st_size) == ([], 0)
    assert path.stat().st_mode & 0o111 == 0
    assert SlotFile(path, LAYOUT, file.table()).keys == []  # a table of nothing is no damage
    (tmp_path / "link").symlink_to(path)
    for table in (None, file.table()):
        with pytest.raises(EpisodeError, match="link cannot be opened: Too many levels of symbol"):
            SlotFile(tmp_path / "link", LAYOUT, table)


def test_what_is_read_is_a_copy() -> None:
    file = SlotFile(None, LAYOUT)
    file.write(0, torch.ones(SIZE))
    vector = file.read(0)
    assert vector is not None
    vector += 1
    assert torch.equal(file.read(0), torch.ones(SIZE))  # type: ignore[arg-type]


def test_a_changed_bit_is_noticed_when_the_vector_is_first_read(tmp_path: Path) -> None:
    file = SlotFile(tmp_path / "rows", LAYOUT)
    for key in range(3):
        file.write(key, torch.rand(SIZE))
    table = file.table()
    data = bytearray((tmp_path / "rows").read_bytes())
    data[SIZE * 4 + 2] ^= 1
    (tmp_path / "rows").write_bytes(data)
    again = SlotFile(tmp_path / "rows", LAYOUT, table)
    assert again.read(0) is not None
    with pytest.raises(EpisodeError, match="rows, a part of the checkpoint, is damaged"):
        again.read(1)
    again.write(2, torch.rand(SIZE))
    with pytest.raises(EpisodeError, match="is damaged"):  # also after another checkpoint
        SlotFile(tmp_path / "rows", LAYOUT, again.table()).read(1)


def test_a_file_that_is_gone_or_cut_short_is_refused_at_once(tmp_path: Path) -> None:
    file = SlotFile(tmp_path / "rows", LAYOUT)
    file.write(0, torch.rand(SIZE))
    file.write(1, torch.rand(SIZE))
    table = file.table()
    os.truncate(tmp_path / "rows", SIZE * 4 + 3)
    with pytest.raises(EpisodeError, match="is damaged"):
        SlotFile(tmp_path / "rows", LAYOUT, table)
    (tmp_path / "rows").unlink()
    with pytest.raises(EpisodeError, match=r"needs .*rows, which is not there: resume where"):
        SlotFile(tmp_path / "rows", LAYOUT, table)


@pytest.mark.parametrize(
    ("name", "values"),
    [("slots", [0, 0]), ("slots", [0, 7]), ("slots", [0, -1]), ("keys", [0, -1])],
)
def test_a_table_that_no_run_can_have_written_is_refused(
    name: str, values: list[int], tmp_path: Path
) -> None:
    file = SlotFile(tmp_path / "rows", LAYOUT)
    file.write(0, torch.rand(SIZE))
    file.write(1, torch.rand(SIZE))
    with pytest.raises(EpisodeError, match="is damaged"):
        SlotFile(tmp_path / "rows", LAYOUT, {**file.table(), name: torch.tensor(values)})


@pytest.mark.parametrize(
    "changes",
    [{"dtype": "load"}, {"keys": 10**15}, {"keys": 0}, {"size": 0}, {"file": "../../etc/passwd"}],
)
def test_a_header_that_no_run_can_have_written_is_refused(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = MappedStates(range(2), 2, torch.ones(SIZE), tmp_path)
    states.keep(1, ClientState(memory=torch.rand(SIZE)))
    path, server = tmp_path / "state.safetensors", ServerState(torch.ones(SIZE))
    content_of = checkpoint._content_of

    def forged(*given: Any) -> Any:
        tensors, more = content_of(*given)
        return tensors, {"rows": {**more["rows"], **changes}}

    checkpoint.save(path, server, states, "a")
    assert list(checkpoint.load(path, "a", "cpu")[1]) == [1]
    monkeypatch.setattr(checkpoint, "_content_of", forged)
    checkpoint.save(path, server, states, "a")
    with pytest.raises(EpisodeError, match=r"state\.safetensors is damaged"):
        checkpoint.load(path, "a", "cpu")


def test_a_file_may_have_as_many_keys_as_are_allowed() -> None:
    assert Layout(2**28, 1, "float32").keys == 2**28
    for keys, size in ((2**28 + 1, 1), (0, 1), (1, 0)):
        with pytest.raises(ValueError, match="There is no file of Layout"):
            Layout(keys, size, "float32")


def test_a_full_disk_is_an_error_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    file = SlotFile(tmp_path / "rows", LAYOUT)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(EpisodeError, match=r"rows cannot be written \(No space left on device\)"):
        file.write(0, torch.rand(SIZE))


def test_a_write_that_stops_half_way_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, place: pwrite(file, data[:3], place))
    file, vector = SlotFile(tmp_path / "rows", LAYOUT), torch.rand(SIZE)
    file.write(0, vector)
    assert torch.equal(file.read(0), vector)  # type: ignore[arg-type]
