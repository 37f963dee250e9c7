"""Matplotlib figures: colours of the algorithms, figures as files, and who has which labels."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.files import open_new
from episode.results.plain_text import without_math
from episode.results.store import write_bytes

STYLES: dict[str, tuple[str, str]] = {
    "episode": ("#0072B2", "-"),
    "episode_guarded": ("#56B4E9", "--"),
    "episode_plus_plus": ("#0072B2", ":"),
    "episode_trust": ("#882255", "-"),
    "episode_unclipped": ("#7F7F7F", "-."),
    "celgc": ("#E69F00", "-"),
    "naive_parallel_clip": ("#000000", "-"),
    "parallel_sgd": ("#000000", ":"),
    "scaffold": ("#D55E00", "-."),
    "scaffold_clipped": ("#CC79A7", "-"),
    "fedavg": ("#009E73", "-."),
    "fedavgm": ("#009E73", "-"),
    "fedadam": ("#117733", "--"),
    "fedyogi": ("#117733", ":"),
    "fedadagrad": ("#117733", "-."),
    "fedprox": ("#44AA99", "-."),
    "minibatch_clip": ("#000000", "--"),
    "diloco": ("#AA4499", "-"),
    "episode_nesterov": ("#332288", "-"),
}
"""Colour and line style of each algorithm, the same in all figures.

The colours are those of Okabe and Ito, and five of Tol's: colour-blind readers can tell them
apart."""
OTHER = ("#777777", "-")
"""Colour and line style of any other algorithm."""
DPI = 130
PICTURES = (".png", ".svg")
"""Endings of the pictures that can be written."""


def new_figure(**options: Any) -> Any:
    """Return an empty matplotlib `Figure` (without pyplot, which is slow to import).

    Raises:
        EpisodeError: Matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EpisodeError("Figures need matplotlib: pip install matplotlib.") from None
    return Figure(**options)


def as_image(figure: Any, kind: str) -> bytes:
    """Return the figure as PNG or SVG; equal figures give equal bytes."""
    image = io.BytesIO()
    metadata = {"Date": None} if kind == "svg" else {}
    figure.savefig(image, format=kind, dpi=DPI, metadata=metadata)
    return image.getvalue()


def draw_partition(
    labels: Sequence[str],
    counts: Sequence[Sequence[int]],
    path: Path,
    title: str,
    clients: Sequence[str],
) -> None:
    """Draw clients against labels: the darker, the larger a label's share of a client.

    The picture is a PNG or an SVG, by the ending of its name.
    """
    check_target(path, *PICTURES)
    shares = [[n / max(1, sum(row)) for n in row] for row in counts]
    few_labels, few_clients = len(labels) <= 20, len(counts) <= 40
    few = few_labels and few_clients
    width = min(16, 2.5 + 0.75 * len(labels)) if few else 9
    height = min(14, 1.6 + 0.42 * len(counts)) if few else 6
    figure = new_figure(figsize=(max(5, width), max(3, height)), layout="constrained")
    axis = figure.subplots()
    colours = {"cmap": "Blues", "vmin": 0, "vmax": 1}
    image = axis.imshow(shares, **colours, aspect="auto", interpolation="nearest")
    axis.set(xlabel="label", ylabel="client", title=without_math(title))
    if few_labels:
        names = [without_math(label) for label in labels]
        axis.set_xticks(range(len(labels)), names, rotation=35 if len(labels) > 4 else 0)
    if few_clients:
        axis.set_yticks(range(len(counts)), [without_math(client) for client in clients])
    cells = [(x, y, n) for y, row in enumerate(counts) for x, n in enumerate(row) if n and few]
    for x, y, n in cells:
        colour = "white" if shares[y][x] > 0.6 else "black"
        axis.text(x, y, f"{n:,}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, label="share of the client's examples")
    write_bytes(path, as_image(figure, path.suffix[1:]))


def check_target(path: Path, *suffixes: str) -> None:
    """Refuse, before any work is done, a file that cannot be written or has another suffix."""
    if suffixes and path.suffix not in suffixes:
        raise EpisodeError(
            f"{path} does not name a picture: use a name that ends in {' or '.join(suffixes)}."
        )
    if path.is_dir():
        raise EpisodeError(f"{path} is a folder: give the name of a file.")
    probe = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        open_new(probe).close()
        probe.unlink()
    except OSError as error:
        raise EpisodeError(f"{path} cannot be written: {error.strerror}.") from None
