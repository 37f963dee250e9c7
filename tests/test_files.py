"""A file is written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from episode.files import open_new, open_to_append, write_whole


def test_a_writer_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "numbers"
    write_whole(target, b"old")

    def fail(path: Path) -> None:
        path.write_bytes(b"ne")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_whole(target, fail)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["numbers"]


def test_permissions_are_those_of_any_new_file(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "bytes", b"1")
        write_whole(tmp_path / "called", lambda path: (path.write_bytes(b"1"), path.chmod(0o600)))
    finally:
        os.umask(before)
    assert [oct(p.stat().st_mode)[-3:] for p in sorted(tmp_path.iterdir())] == ["640", "640"]


def test_the_only_writer_replaces_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / "state.tmp").write_bytes(b"half")
    write_whole(tmp_path / "state", b"whole", only_writer=True)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == [b"whole"]


def test_a_new_file_takes_nobodys_place(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "old")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("old", "link", "dangling"):
        with pytest.raises(FileExistsError):
            open_new(tmp_path / name)
    with pytest.raises(OSError, match="symbolic link"):
        open_to_append(tmp_path / "link")
    assert (tmp_path / "old").read_text() == "old"
    assert not (tmp_path / "nowhere").exists()
