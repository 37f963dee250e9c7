"""Files that were made to break, fill or stop a machine: one sentence each, and at once."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from episode.data import silos
from episode.data.images import open_image
from episode.data.sources import archives
from episode.data.sources.cifar10 import read_batch
from episode.data.sources.fetch import fetch, verify_checksums
from episode.data.sources.snli import SNLI
from episode.data.word_vectors import read_vectors
from episode.errors import EpisodeError
from official import write_snli

DEEP = "[" * 100_000 + "]" * 100_000
MEGABYTE = 1 << 20


def write_silo(folder: Path, name: str = "rows.jsonl", content: str = "") -> list[Path]:
    (folder / "silo").mkdir(parents=True)
    (folder / "silo" / name).write_text(content)
    return silos.silo_folders(folder)


@pytest.mark.parametrize(
    "row",
    [
        f'{{"text": {DEEP}, "label": "a"}}',
        f'{{"text": "t", "label": {"9" * 10_000}}}',
        '{"text": "half a character \\ud800", "label": "a"}',
        '{"text": "t", "label": "\\udfff"}',
        '{"text": "t", "label": {"a": 1}}',
        '{"text": "t", "label": NaN}',
        '{"text": 1e999, "label": "a"}',
    ],
)
def test_any_row_of_a_silo_is_read_or_named(row: str, tmp_path: Path) -> None:
    found = write_silo(tmp_path, content='{"text": "NaN", "label": 1e999}\n' + row + "\n")
    with pytest.raises(EpisodeError, match=r"Row 2 of .*rows\.jsonl"):
        list(silos.texts(dict(enumerate(found)), "text", "label"))


def test_words_that_look_like_numbers_stay_words(tmp_path: Path) -> None:
    found = write_silo(tmp_path, content='{"text": "NaN", "label": "Infinity"}\n')
    assert [(r.content, r.label) for r in silos.texts(dict(enumerate(found)), "text", "label")] == [
        ("NaN", "Infinity")
    ]


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl", "rows.parquet", "a/image.png"])
def test_a_pipe_in_a_silo_is_named_and_not_waited_for(name: str, tmp_path: Path) -> None:
    folders = write_silo(tmp_path, "other.csv", "text,label\nt,a\n")
    pipe = folders[0] / name
    pipe.parent.mkdir(exist_ok=True)
    os.mkfifo(pipe)
    with pytest.raises(EpisodeError, match=rf"{pipe.name} is not a regular file"):
        silos.files_of(folders[0], "images" if name.endswith("png") else "texts")
    with pytest.raises(EpisodeError, match=rf"{pipe.name} is not a regular file"):
        open_image(pipe)


def test_a_pipe_among_official_files_is_named_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "data_batch_1")
    with pytest.raises(EpisodeError, match="data_batch_1 cannot be read: It is not a regular file"):
        read_batch(tmp_path / "data_batch_1")
    folder = write_snli(tmp_path / "snli")
    os.mkfifo(folder / "manifest.json")
    with pytest.raises(EpisodeError, match=r"manifest\.json is damaged"):
        verify_checksums(SNLI, folder)


@pytest.mark.parametrize("content", ["[]", DEEP, "no json", '"\\ud800"'])
def test_a_damaged_manifest_is_named(content: str, tmp_path: Path) -> None:
    folder = write_snli(tmp_path / "snli")
    (folder / "manifest.json").write_text(content)
    with pytest.raises(EpisodeError, match=r"manifest\.json is damaged"):
        verify_checksums(SNLI, folder)


@pytest.mark.parametrize("line", [DEEP, "9" * 10_000, '{"gold_label": "\\ud800"}'])
def test_any_line_of_snli_is_read_or_named(line: str, tmp_path: Path) -> None:
    folder = write_snli(tmp_path / "snli")
    (folder / "snli_1.0_dev.jsonl").write_text(line + "\n")
    with pytest.raises(EpisodeError, match=r"Line 1 of .*dev\.jsonl"):
        SNLI.check(folder)


@pytest.mark.parametrize("key", [b"\xff\xfe", 3, None, (b"\xff",)])
def test_odd_keys_beside_those_of_a_cifar_batch_are_left_alone(key: Any, tmp_path: Path) -> None:
    batch = {key: b"odd", b"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2]}
    (tmp_path / "batch").write_bytes(pickle.dumps(batch, protocol=2))
    assert read_batch(tmp_path / "batch")[1].tolist() == [1, 2]
    del batch[b"data"]
    (tmp_path / "batch").write_bytes(pickle.dumps(batch, protocol=2))
    with pytest.raises(EpisodeError, match="has no data of bytes"):
        read_batch(tmp_path / "batch")


def write_bomb(path: Path, megabytes: int) -> Path:
    """Write a small archive that unpacks to so many megabytes of zeros."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            with zipped.open("snli_1.0_train.jsonl", "w") as file:
                for _ in range(megabytes):
                    file.write(bytes(MEGABYTE))
    else:
        with tarfile.open(path, "w:gz", compresslevel=1) as tarred:
            member = tarfile.TarInfo("snli_1.0_train.jsonl")
            member.size = megabytes * MEGABYTE
            tarred.addfile(member, io.BytesIO(bytes(member.size)))
    return path


@pytest.mark.parametrize("name", ["bomb.zip", "bomb.tar.gz"])
def test_an_archive_that_unpacks_to_much_more_than_its_size_is_stopped(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", 2 * MEGABYTE)
    small = write_bomb(tmp_path / f"small-{name}", 2)
    assert (archives.unpacked(small) / "snli_1.0_train.jsonl").stat().st_size == 2 * MEGABYTE
    bomb = write_bomb(tmp_path / name, 40)
    assert bomb.stat().st_size < MEGABYTE
    with pytest.raises(EpisodeError, match=rf"{name} unpacks to more than \d+ MB, the limit"):
        archives.unpacked(bomb)
    with pytest.raises(EpisodeError, match=rf"{name} unpacks to more than \d+ MB, the limit"):
        fetch("snli", str(bomb))
    kept = [p for p in (tmp_path / "episode home").rglob("*.jsonl") if "small" not in str(p)]
    assert not kept


def test_the_limit_is_fifty_times_the_size_of_an_archive(tmp_path: Path) -> None:
    archive = tmp_path / "a.zip"
    archive.touch()
    archives.Growth(archive).add(256 * MEGABYTE)
    with pytest.raises(EpisodeError, match="more than 256 MB"):
        archives.Growth(archive).add(256 * MEGABYTE + 1)
    os.truncate(archive, 10 * MEGABYTE)
    with pytest.raises(EpisodeError, match="more than 500 MB"):
        archives.Growth(archive).add(500 * MEGABYTE + 1)


def test_packed_vectors_without_an_end_are_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endless, long = tmp_path / "endless.txt.gz", tmp_path / "long.txt.gz"
    endless.write_bytes(gzip.compress(b"word 1 2\n" + b"1" * (3 * MEGABYTE)))
    with pytest.raises(EpisodeError, match=r"Line 2 .* has 1,048,576 characters or more"):
        read_vectors(endless, {"word"})
    monkeypatch.setattr(archives, "ALWAYS_ALLOWED", MEGABYTE)
    long.write_bytes(gzip.compress(b"word 1 2\n" * (MEGABYTE // 4)))
    with pytest.raises(EpisodeError, match="unpacks to more than 1 MB"):
        read_vectors(long, {"word"})
