"""Commands, calls, folders and replies at random, but the same every time; see also `make fuzz`."""

from __future__ import annotations

from pathlib import Path

import fuzz_commands
import fuzz_fit
import fuzz_folders
import fuzz_replies
import pytest
from fuzzing import CASES, Kind, fuzz, read_case

KINDS = {
    kind.name: kind
    for kind in (fuzz_commands.KIND, fuzz_fit.KIND, fuzz_folders.KIND, fuzz_replies.KIND)
}
EXAMPLES = {"commands": 60, "fit": 100, "folders": 20, "replies": 20}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_nothing_that_is_tried_breaks(kind: Kind) -> None:
    tried = fuzz(kind, EXAMPLES[kind.name])
    if tried.error is not None:
        raise AssertionError(f"This case fails: {tried.failed}") from tried.error
    assert tried.count >= EXAMPLES[kind.name]
    assert len(tried.outcomes) > 1  # some are refused, others are not


@pytest.mark.slow
@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_what_once_broke_does_not_break_again(path: Path) -> None:
    KINDS[path.stem.partition("-")[0]].check(read_case(path))
