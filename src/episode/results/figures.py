"""Matplotlib figures: colours of the algorithms, and figures as contents of files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError

STYLES: dict[str, tuple[str, str]] = {
    "episode": ("#0072B2", "-"),
    "episode_guarded": ("#56B4E9", "--"),
    "episode_plus_plus": ("#0072B2", ":"),
    "episode_unclipped": ("#7F7F7F", "-."),
    "celgc": ("#E69F00", "-"),
    "naive_parallel_clip": ("#000000", "-"),
    "parallel_sgd": ("#000000", ":"),
    "scaffold": ("#D55E00", "-."),
    "scaffold_clipped": ("#CC79A7", "-"),
    "fedavg": ("#009E73", "-."),
}
"""Colour and line style of each algorithm, the same in all figures.

The colours are those of Okabe and Ito, which colour-blind readers can tell apart."""
OTHER = ("#777777", "-")
"""Colour and line style of any other algorithm."""
DPI = 130


def new_figure(**options: Any) -> Any:
    """Return an empty matplotlib `Figure` (without pyplot, which is slow to import).

    Raises:
        EpisodeError: Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EpisodeError(
            "Figures need matplotlib: pip install 'episode-fl[plot]' -c constraints.txt."
        ) from None
    return Figure(**options)


def as_image(figure: Any, kind: str) -> bytes:
    """Return the figure as PNG or SVG; equal figures give equal bytes."""
    image = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(image, format=kind, dpi=DPI, metadata=metadata)
    return image.getvalue()


def check_target(path: Path, *suffixes: str) -> None:
    """Refuse, before any work is done, a file that cannot be written or has another suffix."""
    if suffixes and path.suffix not in suffixes:
        raise EpisodeError(
            f"{path} does not name a picture: use a name that ends in {' or '.join(suffixes)}."
        )
    probe = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EpisodeError(f"{path} cannot be written: {error.strerror}.") from None
    if path.is_dir():
        raise EpisodeError(f"{path} is a folder: give the name of a file.")
