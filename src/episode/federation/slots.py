"""Vectors in a memory-mapped file, which change without harm to the checkpoint that names them."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import torch
from torch import Tensor

from episode.errors import EpisodeError

MOST_KEYS = 2**28


@dataclass(frozen=True)
class Layout:
    """What a file of slots holds: a vector, or none, for each of the keys 0 … keys-1."""

    keys: int
    size: int
    """Numbers in a vector."""
    dtype: str
    """Their type, such as `float32`."""

    def __post_init__(self) -> None:
        """Refuse what no run has written: a file may have been made by somebody else."""
        numbers_fit = 0 < self.keys <= MOST_KEYS and self.size > 0
        if not numbers_fit or self.dtype not in ("float64", "float32", "bfloat16", "float16"):
            raise ValueError(f"There is no file of {self}.")


class SlotFile:
    """Vectors by key, each in a slot of a file, of which any checkpoint can name the present ones.

    A checkpoint stores a table that says in which slot each key's vector is. The vectors stay in
    the file, so that a checkpoint costs what has changed, and not what there is.

    The invariant: **a slot that one of the last two tables names is never written.** A new vector
    goes into a free slot, or replaces one that was written after the last table. A slot that is no
    longer in use becomes free when the second table without it is made. So whenever the process
    is killed, all vectors of the last complete checkpoint are in the file. There are two tables
    because a checkpoint is complete some time after its table was made. On a cluster, the first
    process completes it while others already play the next round; but when they make their next
    table, they have played a round together with the first, which had completed it by then.

    Vectors are read through a mapping of their own slot only, so none stays in memory. They are
    written by `pwrite`, because a full disk is then an error and not a signal. Threads may use
    different keys at the same time; tables are made while no thread works.

    Args:
        path: The file; None for a temporary one without a name, which ends with the process.
        layout: What it holds.
        table: What `table` returned when a checkpoint was written; None empties the file.

    Raises:
        EpisodeError: The file cannot be opened, or does not have the slots that the table names.
    """

    def __init__(
        self, path: Path | None, layout: Layout, table: Mapping[str, Tensor] | None = None
    ) -> None:
        self.path = path
        self.layout = layout
        self._dtype: torch.dtype = getattr(torch, layout.dtype)
        self._bytes = layout.size * self._dtype.itemsize
        self._slots = np.full(layout.keys, -1, np.int64)
        self._checksums = np.zeros(layout.keys, np.int64)
        self._unread = np.zeros(layout.keys, np.bool_)
        """Keys whose vectors have not been compared with their checksums since the start."""
        self._end = 0
        """Number of slots in the file."""
        self._fresh: set[int] = set()
        """Keys that were written after the last table."""
        self._replaced: list[int] = []
        """Slots that the last table names, and the next one will not."""
        self._waiting: list[int] = []
        """Slots that the table before the last names, and the last one does not."""
        self._free: list[int] = []
        self._lock = Lock()
        self._file = _opened(path, empty=table is None)
        self.close = weakref.finalize(self, os.close, self._file)
        """Close the file; also done when nothing refers to this object any more."""
        if table is not None:
            self._restore(table)

    @property
    def keys(self) -> list[int]:
        """The keys that have a vector, in ascending order."""
        found: list[int] = np.flatnonzero(self._slots >= 0).tolist()
        return found

    def read(self, key: int) -> Tensor | None:
        """Return a copy of a key's vector, `[size]`, or None if it has none.

        Raises:
            EpisodeError: The vector is not the one that was stored with the checkpoint.
        """
        slot = int(self._slots[key])
        if slot < 0:
            return None
        vector = torch.empty(self.layout.size, dtype=self._dtype)
        begin = slot * self._bytes
        ahead = begin % mmap.ALLOCATIONGRANULARITY
        size, offset = ahead + self._bytes, begin - ahead
        with mmap.mmap(self._file, size, access=mmap.ACCESS_READ, offset=offset) as mapped:
            _bytes_of(vector)[:] = memoryview(mapped)[ahead:]
        if self._unread[key]:
            if zlib.crc32(_bytes_of(vector)) != self._checksums[key]:
                raise self._damaged()
            self._unread[key] = False
        return vector

    def write(self, key: int, vector: Tensor) -> None:
        """Give a key a vector, `[size]`.

        Raises:
            EpisodeError: The file cannot be written.
        """
        data = _bytes_of(vector.detach().cpu().contiguous())
        with self._lock:
            place = self._slot_to_write(key) * self._bytes
        try:
            while data:
                written = os.pwrite(self._file, data, place)
                data, place = data[written:], place + written
        except OSError as error:
            raise EpisodeError(
                f"{self.path or 'A temporary file'} cannot be written ({error.strerror}): "
                "make room, and start again from the last checkpoint."
            ) from None

    def table(self) -> dict[str, Tensor]:
        """Return what a checkpoint must store, once the vectors themselves are on the disk."""
        os.fsync(self._file)
        for key in self._fresh:
            vector = self.read(key)
            assert vector is not None
            self._checksums[key] = zlib.crc32(_bytes_of(vector))
        self._free += self._waiting
        self._waiting, self._replaced, self._fresh = self._replaced, [], set()
        keys = np.flatnonzero(self._slots >= 0)
        found = {"keys": keys, "slots": self._slots[keys], "checksums": self._checksums[keys]}
        return {name: torch.from_numpy(values) for name, values in found.items()}

    def _slot_to_write(self, key: int) -> int:
        old = int(self._slots[key])
        if key in self._fresh:
            return old
        if old >= 0:
            self._replaced.append(old)
        if self._free:
            slot = self._free.pop()
        else:
            slot, self._end = self._end, self._end + 1
        self._slots[key] = slot
        self._unread[key] = False
        self._fresh.add(key)
        return slot

    def _restore(self, table: Mapping[str, Tensor]) -> None:
        keys, slots, checksums = (table[name].numpy() for name in ("keys", "slots", "checksums"))
        self._end = os.fstat(self._file).st_size // self._bytes
        lost = slots.max(initial=-1) >= self._end or slots.min(initial=0) < 0
        if lost or keys.min(initial=0) < 0 or len(np.unique(slots)) < len(slots):
            raise self._damaged()
        self._slots[keys] = slots
        self._checksums[keys] = checksums
        self._unread[keys] = True
        self._free = np.setdiff1d(np.arange(self._end), slots).tolist()

    def _damaged(self) -> EpisodeError:
        return EpisodeError(
            f"{self.path}, a part of the checkpoint, is damaged: remove the run's folder to start "
            "afresh, or put back a copy of the file."
        )


def _opened(path: Path | None, empty: bool) -> int:
    if path is None:
        file, name = tempfile.mkstemp(".rows", "episode-")
        os.unlink(name)  # the file itself lives as long as it is open
        return file
    try:
        if not empty:
            return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o666)
    except FileNotFoundError:
        raise EpisodeError(
            f"The checkpoint needs {path}, which is not there: resume where it was written, "
            "or remove the run's folder to start afresh."
        ) from None
    except OSError as error:
        raise EpisodeError(f"{path} cannot be opened: {error.strerror}.") from None


def _bytes_of(vector: Tensor) -> memoryview:
    """Return a vector on the CPU as bytes, without copying it."""
    numbers: Any = vector.view(torch.uint8).numpy()
    return memoryview(numbers)
