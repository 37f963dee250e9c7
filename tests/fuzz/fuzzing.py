"""Run random cases of a kind, minimise one that fails, and keep it to be tried again."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import math
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed as seeded, settings, strategies as st

CASES = Path(__file__).parent / "cases"
Case = dict[str, Any]
"""What is tried, as JSON values, so that it can be kept and read."""
LONGEST_SENTENCE = 3000


@dataclass(frozen=True)
class Kind:
    """A kind of cases: how they are made, and what must hold of each."""

    name: str
    cases: st.SearchStrategy[Case]
    check: Callable[[Case], str]
    """Raises an error if the case breaks something; returns what became of it, to be counted."""


@dataclass
class Tried:
    """What became of some cases."""

    count: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    failed: Case | None = None
    """The smallest case that fails."""
    error: BaseException | None = None


def fuzz(
    kind: Kind,
    examples: int,
    seed: int | None = None,
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    until: float = math.inf,
) -> Tried:
    """Try cases until one fails, which is then minimised.

    Args:
        kind: What to try.
        examples: How many cases.
        seed: Random seed; None tries the same cases every time.
        around: A context in which each case is tried.
        until: No case is begun after this time of `time.monotonic`.
    """
    tried = Tried()

    @settings(
        max_examples=examples,
        derandomize=seed is None,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    @given(kind.cases)
    def attempt(case: Case) -> None:
        if time.monotonic() > until and tried.failed is None:
            return
        tried.count += 1
        try:
            with around():
                outcome = kind.check(case)
        except Exception:
            tried.failed = case  # the last that fails is the smallest
            raise
        tried.outcomes[outcome] = tried.outcomes.get(outcome, 0) + 1

    try:
        (attempt if seed is None else seeded(seed)(attempt))()
    except Exception as error:  # noqa: BLE001 - it is reported with its case
        tried.error = error
    return tried


def keep(kind: Kind, case: Case) -> Path:
    """Write a case to a file, which `make test` tries from now on."""
    text = json.dumps(case, indent=1, sort_keys=True) + "\n"
    path = CASES / f"{kind.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    path.write_text(text)
    return path


def read_case(path: Path) -> Case:
    """Read a case that was kept."""
    case: Case = json.loads(path.read_text())
    return case


def as_text(data: bytes) -> str:
    """Return bytes as text that JSON can hold."""
    return base64.b85encode(data).decode()


def as_bytes(text: str) -> bytes:
    """Return the bytes that `as_text` was given."""
    return base64.b85decode(text)


@dataclass(frozen=True)
class Spoken:
    """What a command has printed, and its exit code."""

    code: int
    out: str
    err: str


def command(*arguments: str) -> Spoken:
    """Run a command of `episode` in this process; it may end in any way but with a traceback."""
    from episode.cli.main import main

    code: Any = None
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")  # strict, as a terminal is
    err = io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    before = sys.argv
    try:
        sys.argv = ["episode", *arguments]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), quiet():
            main()
    except SystemExit as ended:
        code = ended.code
    finally:
        sys.argv = before
    out.flush()
    err.flush()
    said = [s.buffer.getvalue().decode() for s in (out, err)]  # type: ignore[attr-defined]
    spoken = Spoken(code, *said)
    assert code in (0, 1, 2), spoken
    assert "Traceback" not in spoken.err, spoken
    if "Usage:" in spoken.out + spoken.err:  # by typer, which repeats what the user has typed
        return spoken
    assert "\x1b" not in spoken.out + spoken.err, spoken
    if code:
        assert "Error" in spoken.err, spoken
        is_one_sentence(spoken.err.partition("Error")[2])
    return spoken


def is_one_sentence(text: str) -> None:
    """Check that a message can be printed and read."""
    assert text.strip(), "there is no message"
    assert len(text) < LONGEST_SENTENCE, f"{len(text)} characters: {text[:300]}"
    assert "Traceback" not in text, text
    assert not any(ord(c) < 32 and c != "\n" for c in text), repr(text)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Show warnings as a program does that nobody tests: none of them is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Work in a new folder, which is removed afterwards."""
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


ODD_TEXTS = (
    "", " ", ".", "..", "/", "-", "--", "=", "[", "]", "{}", "\x1b[31m", "nan", "None", "a\nb", "~",
    "[red]x[/red]", "\udcff", "é", "𝄞", "%s", "${HOME}", "x.py:T", "../x", "\t", "x" * 300,
)  # fmt: skip
odd_text = st.one_of(
    st.sampled_from(ODD_TEXTS),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8),
)
"""Text that a user or a file may hold."""
odd_json: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        [None, True, False, 0, -1, 1, 2, 3, 1.5, -0.0, 1e308, 1e-308, 10**30, -(10**9)]
    ),
    st.sampled_from(["NaN", "Infinity", "", "finished", "diverged", "failed", "text", "\ud800"]),
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 99) | st.floats() | odd_text,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_text, inner, max_size=3),
        max_leaves=6,
    ),
)
"""Values of JSON, some of which are right in some places."""
