"""Mixed precision: bfloat16 inside the model, float32 elsewhere, and whether it works here."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Literal

from episode.errors import EpisodeError, unknown

Precision = Literal["float32", "bfloat16"]

TRIAL = """
import torch
x = torch.randn(64, 64)
with torch.autocast("cpu", torch.bfloat16):
    x @ x, torch.nn.LSTM(64, 64)(x[None]), torch.nn.RNN(64, 64)(x[None])
"""


def check_precision(precision: str, device: str) -> None:
    """Refuse a precision that does not exist or does not work here, before any work.

    Some virtual machines announce matrix units (AMX) that programs cannot use: bfloat16 then ends
    the whole process with an illegal instruction. So it is tried in a separate process first.

    Raises:
        EpisodeError: Says what to use instead.
    """
    if not isinstance(precision, str) or precision not in ("float32", "bfloat16"):
        raise unknown("precision", precision, ("float32", "bfloat16"))
    if precision == "bfloat16" and device == "cpu" and not _works_here():
        raise EpisodeError(
            "bfloat16 does not work on this processor with this torch: use float32, or try again "
            "with the environment variable ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16."
        )


@functools.cache
def _works_here() -> bool:
    command = [sys.executable, "-c", TRIAL]
    return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode == 0
