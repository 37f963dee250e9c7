"""Figure of who has which labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from episode.results.figures import as_image, new_figure
from episode.results.store import write_bytes


def draw_partition(
    labels: Sequence[str],
    counts: Sequence[Sequence[int]],
    path: Path,
    title: str,
    clients: Sequence[str],
) -> None:
    """Draw clients against labels as a PNG: the darker, the larger a label's share of a client."""
    shares = [[n / max(1, sum(row)) for n in row] for row in counts]
    few_labels, few_clients = len(labels) <= 20, len(counts) <= 40
    few = few_labels and few_clients
    width = min(16, 2.5 + 0.75 * len(labels)) if few else 9
    height = min(14, 1.6 + 0.42 * len(counts)) if few else 6
    figure = new_figure(figsize=(max(5, width), max(3, height)), layout="constrained")
    axis = figure.subplots()
    image = axis.imshow(
        shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    axis.set(xlabel="label", ylabel="client", title=title)
    if few_labels:
        axis.set_xticks(range(len(labels)), labels, rotation=35 if len(labels) > 4 else 0)
    if few_clients:
        axis.set_yticks(range(len(counts)), clients)
    cells = [(x, y, n) for y, row in enumerate(counts) for x, n in enumerate(row) if n and few]
    for x, y, n in cells:
        colour = "white" if shares[y][x] > 0.6 else "black"
        axis.text(x, y, f"{n:,}", ha="center", va="center", color=colour, fontsize=8)
    figure.colorbar(image, label="share of the client's examples")
    write_bytes(path, as_image(figure, "png"))
