"""Files that are whole or absent, and matplotlib where it is installed."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError


def write_whole(path: Path, content: bytes) -> None:
    """To a temporary file, fsynced and renamed: a reader sees all of it, or what was there."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise EpisodeError(f"{path} cannot be written: {error.strerror}.") from None


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


def as_image(figure: Any, kind: str) -> bytes:
    """The figure as a file's content, png or svg, the same for the same figure; closes it."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(buffer, format=kind, dpi=130, metadata=metadata)
    pyplot().close(figure)
    return buffer.getvalue()
