"""Fetch a dataset completely or not at all, and compare checksums later."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

from episode.data.progress import track
from episode.data.sources import source_named
from episode.data.sources.archives import copy_file, is_archive, unpack
from episode.data.sources.source import Source, find, require
from episode.data.storage import data_folder, dataset_folder, files_below, log, make_folder
from episode.errors import EpisodeError, needs_data_extra
from episode.files import parse_json, read_regular

MANIFEST = "manifest.json"
"""The checksums of a fetched dataset's files."""
_HUB_NAME = re.compile(r"[\w.-]*\w[\w.-]*(/[\w.-]*\w[\w.-]*)?")
"""What can be the name of a dataset on the hub; other texts are paths."""
MOST_LISTED = 10_000
"""A dataset of more files (ImageNet) gets no manifest, which would take longer than the check."""


def fetch(name: str, origin: str | None = None) -> Path:
    """Return the folder of a dataset's official files; fetch them first if they are not there.

    Args:
        name: One of `SOURCES`.
        origin: A folder or archive of the official files, another dataset of the hub, or a folder
            that the package `datasets` can load. None downloads the usual dataset of the hub. An
            interrupted download continues where it stopped.

    Raises:
        EpisodeError: There is no such dataset, it cannot be fetched, or it is damaged. Nothing is
            kept but what was downloaded.
    """
    source = source_named(name)
    target = dataset_folder(name)
    if target.is_dir():
        if origin:
            log.info("%s is here already; remove %s to take it from %s.", name, target, origin)
        return target
    downloads = data_folder() / "downloads" / name

    def write(folder: Path) -> None:
        try:
            _fill(source, origin, downloads, folder)
        except EpisodeError as error:
            # The folder will be gone when the user reads this: name the files it was made from.
            given = Path(origin).expanduser() if origin else Path(source.hub)
            copy = folder / given.name if given.is_file() else folder
            text = str(error).replace(str(copy), str(given)).replace(str(folder), str(given))
            raise EpisodeError(text) from None

    make_folder(target, write)
    shutil.rmtree(downloads, ignore_errors=True)  # the official files are enough
    return target


def verify_checksums(source: Source, folder: Path) -> list[str]:
    """Compare a dataset's files with those that were fetched, and with official checksums.

    Returns:
        One phrase for each comparison that could be made.

    Raises:
        EpisodeError: A file has changed since it was fetched.
    """
    lines = []
    manifest = folder / MANIFEST
    if manifest.exists():
        listed = _read_manifest(manifest)
        for file, expected in track(listed.items(), "comparing checksums", len(listed)):
            path = folder / file
            if not path.exists() or _digest(path, "sha256") != expected:
                raise EpisodeError(
                    f"{path} is not what was fetched: remove {folder}, and fetch {source.name} "
                    "again."
                )
        lines.append(f"{len(listed)} files as they were when fetched (sha256)")
    if source.md5:
        paths = require(folder, source.md5, source.title)
        same = sum(_digest(path, "md5") == source.md5[path.name] for path in paths)
        lines.append(f"{same} of {len(paths)} files have their official md5")
    return lines


def _read_manifest(path: Path) -> dict[str, str]:
    try:
        listed = parse_json(read_regular(path))
        if not isinstance(listed, dict):
            raise ValueError
    except (OSError, ValueError):
        raise EpisodeError(
            f"{path} is damaged: remove {path.parent}, and fetch it again."
        ) from None
    return listed


def _fill(source: Source, origin: str | None, downloads: Path, folder: Path) -> None:
    path = Path(origin).expanduser() if origin else None
    if path is not None and path.is_file():
        if is_archive(path) and (source.is_unpacked or path.suffix != ".zip"):
            unpack(path, folder)
        else:
            copy_file(path, folder / path.name)
    elif path is not None and path.is_dir() and find(path, source.landmark):
        _copy_folder(path, folder)
    else:
        if origin and path is not None and not path.is_dir() and not _HUB_NAME.fullmatch(origin):
            raise EpisodeError(
                f"There is no folder or archive {origin}: give one with the official files of "
                f"{source.title}, or leave --from out to download them."
            )
        downloaded = _download(source, origin, downloads)
        try:
            source.convert(downloaded, folder)
        except KeyError as error:
            raise EpisodeError(f"The dataset's rows have no column {error}.") from None
    source.check(folder)
    files = files_below(folder)
    if len(files) <= MOST_LISTED:
        sums = {
            str(path.relative_to(folder)): _digest(path, "sha256")
            for path in track(files, "writing checksums", len(files))
        }
        (folder / MANIFEST).write_text(json.dumps(sums, indent=2) + "\n")


def _copy_folder(path: Path, folder: Path) -> None:
    files = files_below(path)
    for file in track(files, f"copying {path.name}", len(files)):
        target = folder / file.relative_to(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def _download(source: Source, origin: str | None, downloads: Path) -> Any:
    try:
        return source.download(origin, downloads)
    except EpisodeError:
        raise
    except ImportError:
        raise needs_data_extra("Downloads need the package datasets") from None
    except Exception as error:
        if origin and Path(origin).expanduser().is_dir():
            raise EpisodeError(
                f"The folder {origin} has no {source.landmark}, and nothing else that "
                f"{source.name} can be read from: give the folder or archive of the official "
                "files, or leave --from out to download them."
            ) from error
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:160].rstrip(".")
        raise EpisodeError(
            f"{source.name} could not be fetched from {origin or source.hub} ({reason}): check the "
            "connection and the name, or give the official files with --from."
        ) from error


def _digest(path: Path, algorithm: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
