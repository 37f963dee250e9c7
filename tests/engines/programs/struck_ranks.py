"""Ranks of a cluster that play many runs, each struck by another fault; they tell how each ended.

For every case, a rank prints a line of JSON: the case, and the status of the run or the error.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch
from strikes import SPOILING, Strike, install
from torch import nn
from torch.nn import functional as F

import episode

RANK = int(os.environ["RANK"])
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
LAST, NEVER = 3, -2
"""Rounds."""
AGAIN_REFUSED = ("NaN", "wrong shape", "stale round")
"""Faults that leave a file behind which must be refused when the run is started again."""
PHASES = ("probe", "local", "average", "checkpoint", "evaluate")
CASES = [
    *(("NaN", phase, int(phase != "evaluate")) for phase in PHASES),
    *(("wrong shape", phase, int(phase != "evaluate")) for phase in PHASES),
    *(("stale round", phase, 1) for phase in ("probe", "local", "checkpoint")),
    *(("disk full", phase, 0) for phase in PHASES),
    *(("deleted folder", phase, 1) for phase in PHASES),
]
"""Faults, and the rank that they strike."""


def fit(folder: Path, strike: Strike) -> episode.Run:
    """Play the same run every time, unless the strike says otherwise."""
    torch.manual_seed(0)
    silos = [(torch.randn(40, 4) + s, torch.randint(3, (40,))) for s in (-1.0, 0.0, 1.0)]
    larger = (strike.kind, strike.phase) == ("wrong shape", "average") and RANK == 1
    model = nn.Sequential(nn.Linear(4, 5 + larger), nn.Tanh(), nn.Linear(5 + larger, 3))

    def evaluate(model: nn.Module) -> dict[str, Any]:
        size: Any = next(model.parameters()).norm()
        if strike.kind in SPOILING and strike.is_due("evaluate"):
            return {"size": size * math.nan if strike.kind == "NaN" else size.repeat(2)}
        return {"size": size}

    return episode.fit(
        model, silos, loss=lambda m, b: F.cross_entropy(m(b[0]), b[1]), eta=0.3, gamma=0.1,
        algorithm=episode.Algorithm.named("episode", momentum=0.5), local_steps=2,
        rounds=LAST + 1, batch_size=8, folder=folder, engine="distributed",
        evaluate=evaluate, checkpoint_seconds=0, timeout_seconds=10, workers=1,
    )  # fmt: skip


def played(folder: Path, strike: Strike) -> dict[str, Any]:
    """Return how a run has ended."""
    started = time.time()
    try:
        run = fit(folder, strike)
        history = [record["loss"] for record in run.history]
        summary = {k: v for k, v in run.summary.items() if k != "cluster"}
        return {"status": run.status, "x": run.x.tolist(), "summary": summary, "losses": history}
    except (episode.EpisodeError, OSError) as error:
        struck = strike.mark.stat().st_mtime if strike.mark.exists() else started
        return {"error": str(error), "seconds": time.time() - max(started, struck)}
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, UNLIMITED)


def tell(**values: Any) -> None:
    sys.stdout.write(json.dumps({"rank": RANK, **values}) + "\n")
    sys.stdout.flush()


def main(place: Path) -> None:
    """Play all cases, and those that may resume once more."""
    strike = Strike("", "", place, place / "never", client=None)
    install(strike)
    tell(case="undisturbed", **played(place / "undisturbed", strike))
    tell(case="read back", **played(place / "undisturbed", strike))
    if RANK == 0:  # as if killed after the last checkpoint
        (place / "undisturbed" / "summary.json").unlink()
    tell(case="without a summary", **played(place / "undisturbed", strike))
    for kind, phase, rank in CASES:
        name = f"{kind}, {phase}"
        strike.kind, strike.phase, strike.folder = kind, phase, place / name
        strike.mark, strike.now = place / f"{name}.struck", -1
        at = LAST if kind in AGAIN_REFUSED and phase == "checkpoint" else 2
        strike.round = at if RANK == rank else NEVER
        tell(case=name, **played(place / name, strike))
        if kind == "disk full" or at == LAST:
            if RANK == 0:  # as if killed before it was written
                (place / name / "summary.json").unlink(missing_ok=True)
            strike.kind = ""
            tell(case=f"{name}, again", **played(place / name, strike))


main(Path(sys.argv[1]))
