"""The folder of all data on this machine, and arrays that are prepared once and memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from episode.errors import EpisodeError
from episode.files import lock, sync

log = logging.getLogger("episode")

FORMAT = 2
"""Increased whenever prepared arrays change their meaning, so that old ones are not read."""
INFO = "info.json"


def data_folder() -> Path:
    """Return the folder of all data: $EPISODE_HOME, or `episode` in the user's cache folder."""
    if chosen := os.environ.get("EPISODE_HOME"):
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "episode"


def dataset_folder(name: str) -> Path:
    """Return the folder into which `episode data fetch` writes a dataset's official files."""
    return data_folder() / "datasets" / name


@dataclass(frozen=True)
class PreparedArrays:
    """Memory-mapped arrays by name, and what was noted about them."""

    folder: Path
    info: dict[str, Any]

    def __getitem__(self, name: str) -> Tensor:
        """Return one array as a tensor; its pages are read from the disk when they are used."""
        # Copy-on-write: torch wants writable memory, and nobody may write to the file.
        try:
            return torch.from_numpy(np.load(self.folder / f"{name}.npy", mmap_mode="c"))
        except (OSError, ValueError, EOFError):
            raise _damaged(self.folder) from None

    def get(self, name: str) -> Tensor | None:
        """Return one array, or None if there is none of this name."""
        return self[name] if (self.folder / f"{name}.npy").exists() else None


Build = Callable[[Path], Mapping[str, Any]]
"""Writes `<name>.npy` files into a folder and returns what should be noted about them."""


def prepare_arrays(name: str, key: Mapping[str, Any], build: Build) -> PreparedArrays:
    """Return the arrays that `build` writes; it is called only if they do not exist for this key.

    Args:
        name: First part of the name of the arrays' folder.
        key: Everything that decides the arrays' content, as JSON values.
        build: Writes the arrays. If it fails, nothing is kept.
    """
    text = json.dumps({"format": FORMAT, **key}, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    target = data_folder() / "prepared" / f"{name}-{digest}"
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
    return PreparedArrays(target, info)


def make_folder(target: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a folder, which is `target` when it is complete; does nothing if it exists.

    Raises:
        EpisodeError: Something cannot be read or written; `target` then does not exist.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        held = lock(target.parent / f".{target.name}.lock", wait=True)
        assert held is not None
        with held:
            if target.exists():
                return  # another process was first
            part = target.with_name(f".{target.name}.part")
            shutil.rmtree(part, ignore_errors=True)  # left by a process that was killed
            part.mkdir()
            try:
                write(part)
                for path in files_below(part):
                    sync(path)
                part.rename(target)
                sync(target.parent)
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        where = Path(error.filename or target)
        verb = "written" if where.is_relative_to(target.parent) else "read"
        raise EpisodeError(f"{where} cannot be {verb}: {error.strerror or error}.") from error


def fingerprint(path: Path) -> dict[str, Any]:
    """Return a file's or folder's path, size and time of its last change, to notice changes."""
    status = path.stat()
    return {"path": str(path.resolve()), "size": status.st_size, "changed": status.st_mtime_ns}


def files_below(folder: Path) -> list[Path]:
    """Return all files of a folder and of the folders in it, sorted."""
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _damaged(folder: Path) -> EpisodeError:
    return EpisodeError(f"{folder} is damaged: remove it, and it will be prepared again.")
