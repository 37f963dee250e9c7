"""Where data live on this machine, and prepared arrays that are written once and memory-mapped."""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from episode.errors import EpisodeError

log = logging.getLogger("episode")

FORMAT = 1
"""Raised whenever prepared arrays change their meaning, so that old ones are not read."""
INFO = "info.json"


def home() -> Path:
    """The folder of all data: $EPISODE_HOME, or `episode` in the user's cache folder."""
    if chosen := os.environ.get("EPISODE_HOME"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "episode"


def dataset_folder(name: str) -> Path:
    """Where `episode data fetch` puts a dataset, in its official layout."""
    return home() / "datasets" / name


@dataclass(frozen=True)
class Prepared:
    """Arrays by name, memory-mapped, and what is known about them."""

    folder: Path
    info: dict[str, Any]

    def __getitem__(self, name: str) -> Tensor:
        """One array as a tensor whose pages are read from the disk when they are touched."""
        # Copy-on-write: torch wants writable memory, and nobody may write to the file.
        try:
            return torch.from_numpy(np.load(self.folder / f"{name}.npy", mmap_mode="c"))
        except (OSError, ValueError, EOFError):
            raise _damaged(self.folder) from None


Build = Callable[[Path], Mapping[str, Any]]
"""Writes `<name>.npy` files into a folder and returns what is worth knowing about them."""


def prepared(name: str, key: Mapping[str, Any], build: Build) -> Prepared:
    """The arrays that `build` makes, made once for each key; half of them are never seen."""
    text = json.dumps({"format": FORMAT, **key}, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    target = home() / "prepared" / f"{name}-{digest}"
    if not (target / INFO).exists():
        log.info("Preparing %s (once; kept in %s) ...", name, target)

        def write(folder: Path) -> None:
            info = {"key": json.loads(text), **build(folder)}
            (folder / INFO).write_text(json.dumps(info, indent=2) + "\n")

        make_folder(target, write)
    try:
        info = json.loads((target / INFO).read_text())
    except (OSError, ValueError):
        raise _damaged(target) from None
    return Prepared(target, info)


def make_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Fills a folder beside `target` and renames it: the target is complete or not there."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target):
            if target.exists():
                return  # another process was first
            for left in target.parent.glob(f".{target.name}.*.part"):
                shutil.rmtree(left)  # of a process that was killed: we hold the lock
            part = Path(
                tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
            )
            try:
                write(part)
                _sync(part)
                part.chmod(0o755)
                part.rename(target)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        where = Path(error.filename or target)
        verb = "written" if where.is_relative_to(target.parent) else "read"
        raise EpisodeError(f"{where} cannot be {verb}: {error.strerror or error}.") from error


def _damaged(folder: Path) -> EpisodeError:
    return EpisodeError(f"{folder} is damaged: remove it, and it is made again.")


def fingerprint(path: Path) -> dict[str, Any]:
    """Tells whether a file or folder is still the same: path, size and time of its last change."""
    status = path.stat()
    return {"path": str(path.resolve()), "size": status.st_size, "changed": status.st_mtime_ns}


def save(folder: Path, name: str, values: npt.NDArray[Any]) -> None:
    """Writes one array."""
    np.save(folder / f"{name}.npy", values)


@contextmanager
def _lock(target: Path) -> Iterator[None]:
    with (target.parent / f".{target.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
