"""Runs a tutorial: every block of a page in order, compared with the output that the page shows.

    python docs/_ext/run_page.py docs/tutorials/own_model.md            # says what differs
    python docs/_ext/run_page.py docs/tutorials/own_model.md --write    # puts the real output in

- A `python` block runs in one interpreter per page; a `text` block right after it is its output.
- In a `console` block, lines that begin with `$ ` are commands and the others are their output. A
  command that ends in `&` is stopped when the page ends.
- A `{code-block}` with a `:caption:` is a file of that name; a `diff` changes the file instead.

Words and whole numbers must be as shown. Numbers with a decimal point may differ a little, since
CPUs round differently. `…` stands for whatever may differ more, such as seconds and folders.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BLOCK = re.compile(r"^```(\{code-block\} )?(\w+)\n((?:.*\n)*?)```$", re.MULTILINE)
MARK = "EPISODE_TUTORIAL"
"""Environment variable by which processes are known that a page has started."""
NUMBER = re.compile(r"\d+\.\d+(?:e[+-]?\d+)?")


@dataclass
class Block:
    """A fenced block of a page: its language, its text, and where it stands."""

    language: str
    text: str
    start: int
    end: int
    caption: str = ""


def blocks_of(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    found = []
    for match in BLOCK.finditer(page):
        text, caption = match[3], ""
        options = re.match(r"((?::[\w-]+:.*\n)*)\n?", text)
        if match[1] and options:
            named = re.search(r":caption: (.*)", options[0])
            caption, text = named[1].strip(" `") if named else "", text[options.end() :]
        found.append(Block(match[2], text, match.start(3), match.end(3), caption))
    return found


def alike(shown: str, real: str) -> bool:
    """Return whether output is what the page shows, up to small differences in decimals.

    Example:
        >>> alike("loss 0.501 in …", "loss 0.502 in 3 s"), alike("loss 0.5", "loss 0.7")
        (True, False)
    """
    expected = _lines(shown)
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else _pattern_of(line) + r"\n" for line in expected
    )
    match = re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(real)))
    numbers = [float(n) for line in expected for n in NUMBER.findall(line)]
    return match is not None and all(
        abs(float(a) - b) <= max(0.02, 0.05 * abs(b))
        for a, b in zip(match.groups(), numbers, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def _pattern_of(line: str) -> str:
    parts = (re.escape(part).replace("…", ".*") for part in NUMBER.split(line))
    return r"(\d+\.\d+(?:e[+-]?\d+)?)".join(parts)


class Runner:
    """Runs the blocks of one page in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.left_running: list[subprocess.Popen[bytes]] = []

    def outputs(self, blocks: list[Block]) -> Iterator[tuple[Block, str, str]]:
        """Yield each block that shows output: the block, its new text, and how it differs."""
        for block, after in zip(blocks, [*blocks[1:], None], strict=True):
            if block.caption:
                self.write(block)
            elif block.language == "python":
                real = self.run_python(block.text)
                if after is not None and after.language == "text" and not after.caption:
                    differs = "" if alike(after.text, real) else real
                    yield after, real, differs
            elif block.language == "console":
                real, differs = self.run_console(block.text)
                yield block, real, differs

    def write(self, block: Block) -> None:
        """Write a file, or change it."""
        path = self.folder / block.caption
        path.parent.mkdir(parents=True, exist_ok=True)
        is_change = block.language == "diff"
        path.write_text(apply(block.text, path.read_text()) if is_change else block.text)

    def run_python(self, source: str) -> str:
        """Run a block in the page's interpreter, and return what it prints."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(source, "<block>", "exec"), self.names)
        return printed.getvalue()

    def run_console(self, text: str) -> tuple[str, str]:
        """Run the commands of a block; return the block with real outputs, and what differs."""
        made, differing = [], []
        for command, shown in commands_of(text):
            real = self.run_command(command.replace("\\\n", " "))
            same = alike(shown, real)
            made.append(f"$ {command}\n" + (shown if same else real))
            if not same:
                differing.append(f"$ {command}\n{real}")
        return "".join(made), "".join(differing)

    def run_command(self, command: str) -> str:
        """Run a shell command and return its standard output; one with `&` is left running."""
        if command.rstrip().endswith("&"):
            log = (self.folder / f"background-{len(self.left_running)}.log").open("wb")
            started = subprocess.Popen(
                ["bash", "-c", f"exec {command.rstrip().rstrip('&')}"],
                cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            self.left_running.append(started)
            if port := re.search(r"--port (\d+)", command):
                wait_for(int(port[1]), started)
            return ""
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, capture_output=True, text=True, check=False
        )
        wanted = 0 if "Error: " not in done.stderr else 2
        if done.returncode != wanted:
            raise SystemExit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + (done.stderr if wanted else "")

    def stop(self) -> None:
        """Stop what was left running, and what it has started."""
        for process in self.left_running:
            process.terminate()
        for process in self.left_running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
        for number in marked_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)


def wait_for(port: int, process: subprocess.Popen[bytes], seconds: float = 90.0) -> None:
    """Wait until a program that was started listens on its port."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise SystemExit(f"{process.args!r} does not listen on port {port}.")


def marked_processes() -> list[int]:
    """Return the processes that this one has started, directly or not; they inherit its mark."""
    mark = f"{MARK}={os.environ.get(MARK, '-')}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def commands_of(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output that is shown."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines(keepends=True):
        if line.startswith("$ "):
            found.append((line[2:].rstrip("\n"), ""))
        elif found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line.rstrip()}", "")
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def apply(diff: str, text: str) -> str:
    """Return the text after a diff, whose unchanged and removed lines say where it applies."""
    lines, at = text.splitlines(), 0
    for line in filter(str.strip, diff.splitlines()):
        if line.startswith("+"):
            lines.insert(at, line[1:])
        else:
            at = lines.index(line[1:], at)
            if line.startswith("-"):
                del lines[at]
                continue
        at += 1
    return "\n".join(lines) + "\n"


def run_page(path: Path, folder: Path, write: bool = False) -> str:
    """Run a page in a folder and return what differs from what it shows; empty if nothing does."""
    page, differing, changes = path.read_text(), [], []
    runner = Runner(folder)
    before = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        for block, real, differs in runner.outputs(blocks_of(page)):
            if differs:
                differing.append(f"shown:\n{block.text}\nreal:\n{differs}")
                changes.append((block, real))
    finally:
        os.chdir(before)
        runner.stop()
    if write:
        for block, real in reversed(changes):
            page = page[: block.start] + masked(real).rstrip() + "\n" + page[block.end :]
        path.write_text(page)
    return "\n".join(differing)


def masked(output: str) -> str:
    """Put dots where commands print seconds and numbers of runs.

    Example:
        >>> masked("seconds  1.5")
        'seconds  …'
    """
    output = re.sub(r"^(seconds +)[\d.]+", r"\1…", output, flags=re.MULTILINE)
    output = re.sub(r"\bRun \d{6,}", "Run …", output)
    if "sec." in output:  # the last column of a table
        output = re.sub(r"(?<= )\d+\.\d+ *$", "…", output, flags=re.MULTILINE)
    return output


def main() -> None:
    """Run one page in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--write", action="store_true", help="put the real output into the page")
    chosen = parser.parse_args()
    os.environ |= {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100"}
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    os.environ[MARK] = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:  # short: for sockets
        os.environ |= {"EPISODE_HOME": f"{folder}/.home", "FLWR_HOME": folder, "RAY_TMPDIR": folder}
        differs = run_page(chosen.page.resolve(), Path(folder), chosen.write)
    sys.exit(f"{chosen.page} does not show what its blocks print.\n{differs}" if differs else 0)


if __name__ == "__main__":
    main()
