"""Files that others may have made or may read: written whole, locked, and read with care."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any


def write_whole(
    path: Path, content: bytes | Callable[[Path], object], *, only_writer: bool = False
) -> None:
    """Write a file so that a reader sees the old content or the new, never a part of it.

    The content goes to a temporary file beside `path`, is flushed to the disk and renamed, so that
    a crash at any moment leaves the old file or the new one. The file's permissions are those of
    any new file under the process's umask. A symbolic link of this name is replaced, not followed.

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
    temporary.unlink(missing_ok=True)  # left by a killed process, perhaps with another mode
    try:
        with naming(path), open_new(temporary) as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if isinstance(content, bytes):
                file.write(content)
        if not isinstance(content, bytes):
            content(temporary)
            temporary.chmod(mode)  # some libraries write files for the owner alone
        sync(temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an OSError within say that this is the file, if it does not name one."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


def open_new(path: Path) -> IO[bytes]:
    """Create a file and open it for writing; raise an OSError if anything of this name exists."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb")


def open_to_append(path: Path) -> IO[str]:
    """Open an existing text file to append to it; raise an OSError if it is a symbolic link."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW), "a")


def read_regular(path: Path) -> bytes:
    """Read a file; raise an OSError for a pipe or a device, which may never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        _require_regular(descriptor, path)
        return file.read()


def parse_json(text: str | bytes) -> Any:
    """Parse JSON of others; raise a ValueError for any that cannot be used.

    That includes values nested too deeply, numbers of thousands of digits, and strings with half a
    character, which could neither be printed nor written.
    """
    try:
        values = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    half = ("\\ud", "\\uD") if isinstance(text, str) else (b"\\ud", b"\\uD")
    if any(mark in text for mark in half):  # type: ignore[operator]
        json.dumps(values, ensure_ascii=False).encode()
    return values


def lock(path: Path, *, wait: bool = False) -> IO[str] | None:
    """Lock a file, which is created if necessary, until it is closed.

    Args:
        path: The lock. Its content is left alone, and it may not be a symbolic link.
        wait: Wait for another process that holds the lock.

    Returns:
        The open file, or None if another process holds the lock.

    Raises:
        OSError: It cannot be opened, or it is not a regular file.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp(), "lock")
        >>> with lock(path):
        ...     lock(path) is None
        True
    """
    while True:
        file = os.fdopen(_open_lock(path), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            file.close()
            return None
        except BaseException:
            file.close()
            raise
        if is_open_file(file, path):  # and was not removed before it was locked
            return file
        file.close()


def is_open_file(file: IO[str], path: Path) -> bool:
    """Whether a path still leads to this open file, and not through a link to another."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except OSError:
        return False


def refuse_link(folder: Path) -> None:
    """Raise an OSError if a folder, which may not exist yet, is a symbolic link."""
    if folder.is_symlink():
        raise OSError(errno.ELOOP, "A symbolic link is not followed", str(folder))


def sync(path: Path) -> None:
    """Flush a file, or a folder's list of files, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, f"{path.name} is a symbolic link") from None
        raise
    try:
        _require_regular(descriptor, path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _require_regular(descriptor: int, path: Path) -> None:
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        raise OSError(errno.EINVAL, "It is not a regular file", str(path))
