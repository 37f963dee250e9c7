"""Imports everything once, then plays each order of its stdin in a forked child.

An order is a line of JSON: arguments of `play`, and a `log` for what the child prints. The answers
are two lines: the child's process id, and its exit code (negative for a signal) once it has ended.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import players


def child(pipe: int, order: dict[str, Any]) -> None:
    """Play, and end the process as Python would."""
    os.dup2(pipe, 1)
    os.dup2(pipe, 2)
    os.close(pipe)
    code = 0
    try:
        players.play(**order)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except BaseException:  # noqa: BLE001 - it is printed, and the child ends
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


for line in sys.stdin:
    order = json.loads(line)
    log = Path(order.pop("log"))
    printed, pipe = os.pipe()  # a child whose disk is full can still write to a pipe
    if (pid := os.fork()) == 0:
        child(pipe, order)
    os.close(pipe)
    sys.stdout.write(f"{pid}\n")
    sys.stdout.flush()
    with os.fdopen(printed, "rb") as output:
        log.write_bytes(output.read())
    status = os.waitpid(pid, 0)[1]
    sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
    sys.stdout.flush()
