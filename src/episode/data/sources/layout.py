"""Finding official files in a folder or an archive; archives are unpacked once, and safely."""

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
from episode.data.storage import dataset_folder, fingerprint, home, log, make_folder
from episode.errors import EpisodeError

ARCHIVES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
DEPTH = 3
"""How many folders below the given one official files are looked for."""
MEGABYTE = 1 << 20


def source_folder(name: str, given: str | None) -> Path:
    """The folder of a dataset: the given one (or archive, unpacked), or where `fetch` put it."""
    if given is None:
        folder = dataset_folder(name)
        if not folder.is_dir():
            raise EpisodeError(
                f"{name} is not on this machine: get it with `episode data fetch {name}`, or give "
                "the folder or archive of its official files as task.data."
            )
        return folder
    path = Path(given).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        return unpacked(path)
    raise EpisodeError(f"There is no folder or archive {path}: give the official files of {name}.")


def find(folder: Path, name: str) -> Path | None:
    """A file or folder of this name, here or a few folders below; the nearest."""
    for depth in range(DEPTH + 1):
        pattern = "*/" * depth + name
        if found := sorted(folder.glob(pattern)):
            return found[0]
    return None


def require(folder: Path, names: Iterable[str], dataset: str) -> list[Path]:
    """The paths of official files; names the first that is missing."""
    paths = []
    for name in names:
        path = find(folder, name)
        if path is None:
            raise EpisodeError(f"{dataset} needs {name}, but there is none in {folder}.")
        paths.append(path)
    return paths


def only_in_test(where: str, label: str) -> EpisodeError:
    """The error for a row whose label no training row has."""
    return EpisodeError(
        f"{where} has the label {label!r}, which no training row has: a model cannot learn a label "
        "that occurs in test only."
    )


def is_archive(path: Path) -> bool:
    """Whether the name is that of an archive."""
    return path.name.lower().endswith(ARCHIVES)


def unpacked(archive: Path) -> Path:
    """The archive's files in our own folder, unpacked once."""
    if not is_archive(archive):
        raise EpisodeError(
            f"{archive} is neither a folder nor an archive ({', '.join(ARCHIVES)}): "
            "give one with the official files."
        )
    digest = hashlib.sha256(json.dumps(fingerprint(archive)).encode()).hexdigest()[:12]
    target = home() / "unpacked" / f"{archive.name}-{digest}"
    if not target.exists():
        log.info("Unpacking %s (once; kept in %s) ...", archive, target)
        make_folder(target, lambda folder: unpack(archive, folder))
    return target


def unpack(archive: Path, folder: Path) -> None:
    """Writes the archive's plain files below the folder; refuses any that would lie elsewhere."""
    extract = _unzip if archive.name.lower().endswith(".zip") else _untar
    total = _megabytes(archive.stat().st_size)
    try:
        with archive.open("rb") as file:
            steps = _read_so_far(file, extract(archive, file, folder), total)
            for _ in track(steps, f"unpacking {archive.name}, MB", total):
                pass
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, *_DAMAGE) as error:
        raise EpisodeError(f"The archive {archive} is damaged or cut off ({error}).") from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or packed in another way
        raise EpisodeError(f"The archive {archive} cannot be unpacked ({error}).") from None


_DAMAGE = (gzip.BadGzipFile, lzma.LZMAError)


def copy_file(source: Path, target: Path) -> None:
    """Copies one file, which may be large."""
    with source.open("rb") as file:
        total = _megabytes(source.stat().st_size)
        for _ in track(_write(target, file), f"copying {source.name}, MB", total):
            pass


def _megabytes(size: int) -> int:
    return -(-size // MEGABYTE)


def _read_so_far(file: IO[bytes], steps: Iterable[None], total: int) -> Iterator[None]:
    """Takes the steps, and yields once for each megabyte that they have read of the file."""
    done = 0
    for _ in steps:
        here = min(file.tell() // MEGABYTE, total)
        yield from [None] * (here - done)
        done = max(done, here)
    yield from [None] * (total - done)


def _unzip(archive: Path, file: IO[bytes], folder: Path) -> Iterator[None]:
    with zipfile.ZipFile(file) as zipped:
        for member in zipped.infolist():
            target = _inside(folder, member.filename, archive)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                with zipped.open(member) as source:
                    yield from _write(target, source)


def _untar(archive: Path, file: IO[bytes], folder: Path) -> Iterator[None]:
    with tarfile.open(fileobj=file) as tarred:
        for member in tarred:
            target = _inside(folder, member.name, archive)
            if member.isdir():
                target.mkdir(parents=True, exist_ok=True)
            elif member.isfile() and (source := tarred.extractfile(member)):
                with source:
                    yield from _write(target, source)
            else:
                raise EpisodeError(
                    f"{archive} holds {member.name!r}, which is neither a file nor a folder."
                )


def _inside(folder: Path, name: str, archive: Path) -> Path:
    """Where a file of the archive goes; refuses a name that leads out of the folder."""
    target = (folder / name).resolve()
    if not target.is_relative_to(folder.resolve()):
        raise EpisodeError(f"{archive} would write outside of its folder ({name!r}).")
    return target


def _write(target: Path, source: IO[bytes]) -> Iterator[None]:
    """Copies what is left of the source, a megabyte at each step."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as file:
        while part := source.read(MEGABYTE):
            file.write(part)
            yield
