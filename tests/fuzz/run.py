"""Fuzz for some minutes with random seeds; keep what fails as a case. `make fuzz` runs this."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "flower"), str(HERE.parent / "results")]

BATCH = {"commands": 200, "fit": 200, "folders": 50, "replies": 50}
MOST_FAILURES = 5
"""A kind that has failed so often is not tried any more."""
LONGEST_SECONDS = 120
MOST_MEMORY = 8 << 30


def main() -> int:
    """Try kinds in turn until the time is up, or each has had enough examples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--kinds", nargs="*", default=[*BATCH], choices=[*BATCH])
    parser.add_argument("--examples", type=int, default=10**9, help="at most so many of each kind")
    given = parser.parse_args()
    os.environ |= {"HF_HUB_OFFLINE": "1", "EPISODE_HOME": tempfile.mkdtemp(prefix="episode-home-")}
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    print(f"seed {given.seed}, {given.minutes:g} minutes", flush=True)

    from fuzzing import fuzz, keep
    from test_fuzz import KINDS

    seeds, until = random.Random(given.seed), time.monotonic() + 60 * given.minutes
    counts: Counter[str] = Counter()
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in given.kinds}
    failed: dict[str, set[Path]] = {name: set() for name in given.kinds}
    while time.monotonic() < until:
        wanted = [
            name
            for name in given.kinds
            if counts[name] < given.examples and len(failed[name]) < MOST_FAILURES
        ]
        if not wanted:
            break
        for name in wanted:
            seed = seeds.randrange(2**32)
            print(f"{name} with seed {seed} ...", flush=True)
            tried = fuzz(KINDS[name], min(BATCH[name], given.examples), seed, limited, until)
            counts[name] += tried.count
            outcomes[name] += Counter(tried.outcomes)
            print(f"{name}: {tried.count} examples", flush=True)
            if tried.error is not None:
                assert tried.failed is not None
                failed[name].add(path := keep(KINDS[name], tried.failed))
                traceback.print_exception(tried.error)
                print(f"This fails, and is kept in {path}: {tried.failed}", flush=True)
    for name in given.kinds:
        what = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes[name].items()))
        print(f"{name}: {counts[name]} examples ({what}), {len(failed[name])} failures")
        for path in sorted(failed[name]):
            print(f"  {path}")
    return 1 if any(failed.values()) else 0


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Let a case that hangs fail."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"it takes more than {LONGEST_SECONDS} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(LONGEST_SECONDS)
    # Code that is not Python's may never see the signal: then this ends the process, with a trace.
    faulthandler.dump_traceback_later(2 * LONGEST_SECONDS, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.alarm(0)


if __name__ == "__main__":
    sys.exit(main())
