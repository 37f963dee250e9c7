"""matplotlib, where it is installed, and figures as the content of files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError


def pyplot() -> Any:
    """matplotlib.pyplot, drawing to files."""
    try:
        import matplotlib as mpl
    except ImportError:
        raise EpisodeError(
            "Pictures need matplotlib: pip install 'episode-fl[plot]' -c constraints.txt."
        ) from None
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def check_target(path: Path, *endings: str) -> None:
    """Refuses, before any work, a file that could not be written, or is of another kind."""
    if endings and path.suffix not in endings:
        raise EpisodeError(f"{path} would be no picture: use a name that ends in .png or .svg.")
    probe = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise EpisodeError(f"{path} cannot be written: {error.strerror}.") from None
    if path.is_dir():
        raise EpisodeError(f"{path} is a folder: give a file's name.")


def as_image(figure: Any, kind: str) -> bytes:
    """The figure as a file's content, png or svg, the same for the same figure; closes it."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(buffer, format=kind, dpi=130, metadata=metadata)
    pyplot().close(figure)
    return buffer.getvalue()
