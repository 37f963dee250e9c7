"""What torch has left running in this process."""

from __future__ import annotations

import sys
from pathlib import Path


def assert_none_of_gloos_is_left() -> None:
    """One that outlives its process group aborts the process if it meets Python's own end."""
    if sys.platform == "linux":
        names = [task.joinpath("comm").read_text() for task in Path("/proc/self/task").iterdir()]
        assert not [name for name in names if "gloo" in name], names
