"""A `flower-superexec` that forks the process of each message from one that has imported the rest.

A SuperNode starts a process for each message, and most of the time of a small one goes into its
imports. Here torch, flwr and episode are imported once for each site. The process of a message is
a process of its own all the same: it runs `flwr-clientapp`, and imports the app anew.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from types import SimpleNamespace
from typing import TextIO

import torch  # noqa: F401
from flwr.supercore.cli import flower_superexec
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

import episode.flower.app
import episode.flower.client
import episode.flower.secure
import episode.tasks  # noqa: F401


def fork_for_each(commands: TextIO) -> None:
    """Run each command in a process of its own, until the SuperExec has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in commands:
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sys.argv = json.loads(line)
            flwr_clientapp()
            return


def main() -> None:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.close(writer)
        with os.fdopen(reader) as commands:
            fork_for_each(commands)
        return
    os.close(reader)

    def ask(command: list[str], **options: object) -> None:
        os.write(writer, f"{json.dumps(command)}\n".encode())

    subprocess_executor.subprocess = SimpleNamespace(Popen=ask, DEVNULL=None)  # type: ignore[assignment]
    flower_superexec()


if __name__ == "__main__":
    main()
