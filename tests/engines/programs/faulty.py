"""`episode`, with a fault that strikes once, on one rank: FAULT = kind:phase:round:rank.

kind is a signal, or flip (of a bit of x̄ in the probe); see `strikes.py` for the rest.
The file FAULT_MARK remembers that it has struck, so that a restarted run is spared.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from strikes import Strike, install

from episode.cli.main import main
from episode.federation.worker import Worker

KIND, PHASE, ROUND, RANK = os.environ["FAULT"].split(":")
strike = Strike(KIND, PHASE, Path(), Path(os.environ["FAULT_MARK"]), int(ROUND), client=None)


def flipping(probe: Any) -> Any:
    def served(self: Worker, *args: Any, **sent: Any) -> Any:
        if strike.is_due(PHASE):
            sent["x"].view(-1)[0] += 1e-3
        return probe(self, *args, **sent)

    return served


if os.environ["RANK"] == RANK:
    install(strike)
    if KIND == "flip":
        Worker.probe = flipping(Worker.probe)  # type: ignore[method-assign]
main()
