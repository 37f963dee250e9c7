"""Run a command as another system user who can read only what everybody can, and our Python.

It needs root and Linux. If Python is below a folder that others cannot enter, such as root's home,
the command gets its own view of the file system, in which that folder holds nothing but Python.
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

FIRST_USER = 61_000
"""Numbers of users that nobody has."""
SCRIPT = """
set -eu
user=$1; shift
while [ "$1" != -- ]; do
  closed=$1; shift
  aside=$(mktemp -d)
  mount --rbind "$closed" "$aside"
  mount -t tmpfs -o mode=755 tmpfs "$closed"
  while [ "$1" != . ]; do
    mkdir -p "$closed/$1"
    mount --rbind "$aside/$1" "$closed/$1"
    shift
  done
  shift
  umount -l "$aside"
  rmdir "$aside"
done
shift
exec setpriv --reuid="$user" --regid="$user" --clear-groups --no-new-privs -- "$@"
"""

needs_root = pytest.mark.skipif(
    sys.platform != "linux"
    or os.geteuid() != 0
    or not all(map(shutil.which, ("unshare", "setpriv", "mount"))),
    reason="other system users need root on Linux",
)


def as_user(user: int, command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` as this user."""
    needed = {Path(p).resolve() for p in (sys.base_prefix, sys.prefix, _sources())}
    closed: dict[Path, list[str]] = {}
    for path in sorted(needed):
        for folder in (*reversed(path.parents), path):
            if not folder.stat().st_mode & stat.S_IXOTH:
                closed.setdefault(folder, []).append(str(path.relative_to(folder)))
                break
    views = [part for folder, kept in closed.items() for part in (str(folder), *kept, ".")]
    start = ["unshare", "--mount", "--propagation", "private", "sh", "-c", SCRIPT, "sh"]
    return [*start, str(user), *views, "--", *command]


def _sources() -> str:
    import episode

    return str(Path(episode.__file__).parents[2])
