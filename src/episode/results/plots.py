"""Pictures of runs. One colour and line per algorithm, everywhere the same."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from episode.errors import EpisodeError
from episode.results.store import StoredRun, write_bytes

# The colours of Okabe and Ito, which colour-blind readers can tell apart; line styles besides.
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
OTHER = ("#777777", "-")
DPI = 130


def draw_curves(runs: Sequence[StoredRun], path: Path, title: str) -> None:
    """Test accuracy and training loss by gradients, and accuracy by exchanges, as one PNG."""
    figure = new_figure(figsize=(15, 4.8), layout="constrained")
    axes = figure.subplots(1, 3)
    panels = (
        ("gradients", "test_accuracy", "gradients per client", "test accuracy"),
        ("exchanges", "test_accuracy", "exchanges with the server", "test accuracy"),
        ("gradients", "train_loss", "gradients per client", "training loss"),
    )
    for axis, (x, y, x_label, y_label) in zip(axes, panels, strict=True):
        for run in runs:
            _draw(axis, run, x, y)
        axis.set_xlabel(x_label)
        axis.set_ylabel(y_label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    axes[0].set_ylim(0, 1)
    axes[1].set_ylim(0, 1)
    axes[1].set_xscale("log")
    axes[2].set_yscale("log")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    figure.suptitle(title)
    _save(figure, path)


def _draw(axis: Any, run: StoredRun, x: str, y: str) -> None:
    evaluated = [r for r in run.rounds if y in r.get("metrics", {})]
    clients = max((len(r["cohort"]) for r in run.rounds), default=1)
    scale = 1 / clients if x == "gradients" else 1
    colour, line = STYLES.get(run.label, OTHER)
    label = run.label if run.status == "finished" else f"{run.label} ({run.status})"
    points = [r[x] * scale for r in evaluated], [r["metrics"][y] for r in evaluated]
    axis.plot(*points, line, color=colour, label=label, linewidth=1.6)
    if run.status == "diverged" and evaluated:
        axis.plot(points[0][-1], points[1][-1], "x", color=colour)


def new_figure(**options: Any) -> Any:
    """An empty figure of matplotlib's: without pyplot, which takes long to import."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise EpisodeError(
            "Pictures need matplotlib: pip install 'episode-fl[plot]' -c constraints.txt."
        ) from None
    return Figure(**options)


def draw_partition(
    labels: Sequence[str],
    counts: Sequence[Sequence[int]],
    path: Path,
    title: str,
    clients: Sequence[str],
) -> None:
    """Clients by labels as one PNG: the darker, the larger the label's share of the client."""
    shares = [[n / max(1, sum(row)) for n in row] for row in counts]
    few_labels, few_clients = len(labels) <= 20, len(counts) <= 40
    few = few_labels and few_clients
    width = min(16, 2.5 + 0.75 * len(labels)) if few else 9
    height = min(14, 1.6 + 0.42 * len(counts)) if few else 6
    figure = new_figure(figsize=(max(5, width), max(3, height)), layout="constrained")
    axis = figure.subplots()
    picture = axis.imshow(
        shares, cmap="Blues", vmin=0, vmax=1, aspect="auto", interpolation="nearest"
    )
    axis.set_xlabel("label")
    axis.set_ylabel("client")
    if few_labels:
        axis.set_xticks(range(len(labels)), labels, rotation=35 if len(labels) > 4 else 0)
    if few_clients:
        axis.set_yticks(range(len(counts)), clients)
    if few:
        for client, row in enumerate(counts):
            for label, count in enumerate(row):
                if count:
                    colour = "white" if shares[client][label] > 0.6 else "black"
                    axis.text(label, client, f"{count:,}", ha="center", va="center", color=colour,
                              fontsize=8)  # fmt: skip
    figure.colorbar(picture, label="share of the client's examples")
    axis.set_title(title)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, dpi=DPI, format="png")
    write_bytes(path, picture.getvalue())
