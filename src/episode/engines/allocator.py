"""Keep the C library from returning memory to the system between two batches."""

from __future__ import annotations

import contextlib
import ctypes
import sys

# Names and numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_LARGEST_MMAP_THRESHOLD = 32 * 2**20
_KEPT = 512 * 2**20


def keep_freed_memory() -> None:
    """Let this process keep up to 512 MB that it has freed, for the next batch.

    By default glibc returns a recurrent network's activations to the system after every batch and
    gets them back page by page: about 4,000 page faults for one gradient of an LSTM
    (docs/performance.md). With another C library this function does nothing.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)
