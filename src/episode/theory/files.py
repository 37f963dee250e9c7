"""matplotlib, where it is installed, and figures as the content of files."""

from __future__ import annotations

import io
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


def as_image(figure: Any, kind: str) -> bytes:
    """The figure as a file's content, png or svg, the same for the same figure; closes it."""
    buffer = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(buffer, format=kind, dpi=130, metadata=metadata)
    pyplot().close(figure)
    return buffer.getvalue()
