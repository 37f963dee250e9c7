"""Run the demo with several seeds and print a Markdown table, as in docs/results.md.

python examples/demo_over_seeds.py            # five seeds, about five minutes on two cores
"""

import statistics
from pathlib import Path

from episode import ALGORITHMS
from episode.results.store import StoredRun
from episode.studies.demo import run_demo

SEEDS = range(5)
ROUNDS = 60


def row(name: str, runs: list[StoredRun]) -> str:
    """Format accuracy (mean, standard deviation, range), loss and the cost of one run."""
    accuracy = [run.summary["metrics"]["test_accuracy"] for run in runs]
    loss = [run.summary["metrics"]["train_loss"] for run in runs]
    cost = runs[0].summary
    cells = (
        name,
        f"{statistics.mean(accuracy):.3f} ± {statistics.stdev(accuracy):.3f}",
        f"{min(accuracy):.3f} to {max(accuracy):.3f}",
        f"{statistics.mean(loss):.2f} ± {statistics.stdev(loss):.2f}",
        ", ".join(sorted({run.status for run in runs})),
        f"{cost['rounds']}",
        f"{cost['exchanges']}",
        f"{(cost['bytes_up'] + cost['bytes_down']) / 1e6:.1f}",
        f"{cost['gradients']:,}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Run every seed (or read its runs back), and print the table."""
    by_seed = [run_demo(Path(f"runs/seeds/{s}"), s, ROUNDS, lambda *_: None) for s in SEEDS]
    head = "algorithm|test accuracy|range|training loss|status|rounds|exchanges|MB|gradients"
    print(f"| {head.replace('|', ' | ')} |")
    print("|---" * (head.count("|") + 1) + "|")
    for k, name in enumerate(ALGORITHMS):
        print(row(name, [runs[k] for runs in by_seed]))


if __name__ == "__main__":
    main()
