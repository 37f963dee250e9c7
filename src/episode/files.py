"""Write files whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_whole(
    path: Path, content: bytes | Callable[[Path], object], *, only_writer: bool = False
) -> None:
    """Write a file so that a reader sees the old content or the new, never a part of it.

    The content goes to a temporary file beside `path`, is flushed to the disk and renamed, so that
    a crash at any moment leaves the old file or the new one. The file's permissions are those of
    any new file under the process's umask.

    Args:
        path: The file to write, in an existing folder.
        content: The bytes, or a function that writes them to the path it is given.
        only_writer: Promise that no other process writes this file at the same time. What a killed
            process left behind is then overwritten instead of staying beside the file.

    Raises:
        OSError: The file cannot be written; the old one is intact.

    Example:
        >>> import tempfile
        >>> target = Path(tempfile.mkdtemp(), "numbers.txt")
        >>> write_whole(target, b"1 2 3")
        >>> target.read_text()
        '1 2 3'
    """
    temporary = path.with_name(
        f"{path.name}.tmp" if only_writer else f"{path.name}.{os.getpid()}.tmp"
    )
    try:
        temporary.touch()
        mode = temporary.stat().st_mode
        if isinstance(content, bytes):
            temporary.write_bytes(content)
        else:
            content(temporary)
            temporary.chmod(mode)  # some libraries write files for the owner alone
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
