"""Archives of official files: unpacked once, and never outside of their own folder."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from episode.data.progress import track
from episode.data.storage import data_folder, fingerprint, log, make_folder
from episode.errors import EpisodeError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
MEGABYTE = 1 << 20
MOST_GROWTH = 50
"""How many times its own size an archive may unpack to; official ones stay below 15."""
ALWAYS_ALLOWED = 256 * MEGABYTE
"""Bytes that any archive may unpack to, however small it is."""


def is_archive(path: Path) -> bool:
    """Return whether a file has the name of an archive."""
    return path.name.lower().endswith(ARCHIVES)


def unpacked(archive: Path) -> Path:
    """Return the folder of an archive's files, which are unpacked the first time.

    Raises:
        EpisodeError: It is no archive, is damaged, or would write outside of its folder.
    """
    if not is_archive(archive):
        raise EpisodeError(
            f"{archive} is neither a folder nor an archive ({', '.join(ARCHIVES)}): "
            "give one with the official files."
        )
    digest = hashlib.sha256(json.dumps(fingerprint(archive)).encode()).hexdigest()[:12]
    target = data_folder() / "unpacked" / f"{archive.name}-{digest}"
    if not target.exists():
        log.info("Unpacking %s (once; kept in %s) ...", archive, target)
        make_folder(target, lambda folder: unpack(archive, folder))
    return target


class Growth:
    """Counts what a packed file unpacks to, and stops one that was made to fill the disk.

    Args:
        file: The packed file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._left = self._limit = max(ALWAYS_ALLOWED, MOST_GROWTH * file.stat().st_size)

    def add(self, count: int) -> None:
        """Count so many bytes.

        Raises:
            EpisodeError: They are more than the limit, which is named.
        """
        self._left -= count
        if self._left < 0:
            raise EpisodeError(
                f"{self._file} unpacks to more than {self._limit // MEGABYTE:,} MB, the limit for "
                f"its size: if this is right, unpack it yourself and give what comes out."
            )


def unpack(archive: Path, folder: Path) -> None:
    """Write the archive's files below a folder.

    Raises:
        EpisodeError: The archive is damaged, holds a link or a path that leads elsewhere, or
            unpacks to much more than its own size.
    """
    members = _zip_members if archive.name.lower().endswith(".zip") else _tar_members
    total = _megabytes(archive.stat().st_size)
    try:
        with archive.open("rb") as file:
            steps = _megabytes_read(file, _extract(archive, members(file), folder), total)
            for _ in track(steps, f"unpacking {archive.name}, MB", total):
                pass
    except _DAMAGE as error:
        raise EpisodeError(f"The archive {archive} is damaged or cut off ({error}).") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or packed in another way
        raise EpisodeError(f"The archive {archive} cannot be unpacked ({error}).") from None


_DAMAGE = (
    tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError,
)  # fmt: skip


def copy_file(source: Path, target: Path) -> None:
    """Copy one file, which may be large, and report progress."""
    with source.open("rb") as file:
        total = _megabytes(source.stat().st_size)
        for _ in track(_copy(target, file), f"copying {source.name}, MB", total):
            pass


def _megabytes(size: int) -> int:
    return -(-size // MEGABYTE)


def _megabytes_read(file: IO[bytes], steps: Iterable[None], total: int) -> Iterator[None]:
    """Take the steps, and yield once for each megabyte of the file that they have read."""
    done = 0
    for _ in steps:
        here = min(file.tell() // MEGABYTE, total)
        yield from [None] * (here - done)
        done = max(done, here)
    yield from [None] * (total - done)


def _extract(
    archive: Path, members: Iterable[tuple[str, IO[bytes] | None]], folder: Path
) -> Iterator[None]:
    growth = Growth(archive)
    for name, content in members:
        target = (folder / name).resolve()
        if not target.is_relative_to(folder.resolve()):
            raise EpisodeError(f"{archive} would write outside of its folder ({name!r}).")
        if content is None:
            target.mkdir(parents=True, exist_ok=True)
        else:
            with content:
                for count in _copy(target, content):
                    growth.add(count)
                    yield


def _zip_members(file: IO[bytes]) -> Iterator[tuple[str, IO[bytes] | None]]:
    """Open the files of an archive in turn; the content of a folder is None."""
    with zipfile.ZipFile(file) as zipped:
        for member in zipped.infolist():
            yield member.filename, None if member.is_dir() else zipped.open(member)


def _tar_members(file: IO[bytes]) -> Iterator[tuple[str, IO[bytes] | None]]:
    with tarfile.open(fileobj=file) as tarred:
        for member in tarred:
            if not member.isdir() and not member.isfile():
                raise EpisodeError(
                    f"{file.name} holds {member.name!r}, which is neither a file nor a folder."
                )
            yield member.name, tarred.extractfile(member)


def _copy(target: Path, source: IO[bytes]) -> Iterator[int]:
    """Copy the rest of the source, one megabyte at each step; yield how many bytes that were."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        while part := source.read(MEGABYTE):
            yield file.write(part)
