"""Run folders that look like real ones, made without training."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from episode.results.per_client import read_lines, summarise

PLACES = (
    "Aachen",
    "Bergen",
    "Cork",
    "Delft",
    "Ely",
    "Faro",
    "Ghent",
    "Hospital del Mar, Barcelona",
)
UNCLIPPED = ("fedavg", "scaffold")
NORMED = ("episode", "episode_guarded", "episode_plus_plus", "scaffold", "scaffold_clipped")


def make_run(
    folder: Path,
    algorithm: str = "episode",
    seed: int = 0,
    rounds: int = 20,
    local_steps: int = 8,
    status: str = "finished",
    task: str = "digits",
    evaluate_every: int = 1,
) -> Path:
    """A folder with config, environment, rounds and summary, of numbers with all their digits."""
    noise = np.random.default_rng([seed, rounds, len(algorithm), local_steps])
    folder.mkdir(parents=True)
    config = {
        "seed": seed,
        "task": {"name": task, "num_clients": 8, "similarity": 0.0, "batch_size": 32},
        "algorithm": {"name": algorithm},
        "schedule": {"eta": 1.0, "gamma": 0.1, "kind": "constant"},
        "budget": {"rounds": rounds, "local_steps": local_steps},
        "record": {"evaluate_every": evaluate_every},
        "id": f"{seed:04d}{rounds:04d}",
    }
    records: list[dict[str, Any]] = []
    exchanges = 2 if algorithm.startswith("episode") else 1
    for r in range(rounds):
        norm = 0.2 * math.exp(-r / rounds) * (1 + 0.3 * noise.random())
        loss = 2.3 * math.exp(-2 * r / rounds) * (1 + 0.1 * noise.random())
        record: dict[str, Any] = {
            "round": r, "eta": 1.0, "gamma": 0.1, "threshold": 0.1,
            "global_norm": norm if algorithm in NORMED else None,
            "clipped": bool(norm > 0.1) if algorithm.startswith("episode") else None,
            "clipped_steps": float(noise.random()) if algorithm not in UNCLIPPED else 0.0,
            "loss": loss, "largest_norm": 2 * norm if algorithm not in UNCLIPPED else None,
            "drift": float(noise.random()), "cohort": list(range(8)),
            "exchanges": exchanges * (r + 1), "bytes_up": 41_000 * (r + 1),
            "bytes_down": 43_000 * (r + 1), "gradients": 8 * local_steps * (r + 1),
            "seconds": (r + 1) * 0.01 + float(noise.random()) * 1e-3,
        }  # fmt: skip
        if (r + 1) % evaluate_every == 0 or r == rounds - 1:
            record["metrics"] = {
                "test_loss": loss * 1.1, "test_accuracy": 1 - loss / 3 + float(noise.random()) / 50,
                "train_loss": loss * 0.9, "train_accuracy": 1 - loss / 3.3,
            }  # fmt: skip
        records.append(record)
    if status == "diverged":
        records[-2]["loss"], records[-1]["loss"] = 1e9, "NaN"
        records[-1].pop("metrics", None)
    (folder / "config.json").write_text(json.dumps(config))
    environment = {"episode": "0.0", "torch": "2.13.0", "cores": 2, "command": ["episode"]}
    (folder / "env.json").write_text(json.dumps(environment))
    (folder / "rounds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    if status != "running":
        metrics = next((r["metrics"] for r in records[::-1] if "metrics" in r), {})
        totals = ("exchanges", "bytes_up", "bytes_down", "gradients", "seconds", "loss")
        last = {k: records[-1][k] for k in totals}
        summary = {"status": status, "rounds": rounds, **last, "metrics": metrics}
        if status == "diverged":
            summary["reason"] = f"loss is nan in round {rounds - 1}"
        (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def write_partition(folder: Path) -> dict[str, Any]:
    """Store who has which labels, different for each seed, and return it."""
    seed = json.loads((folder / "config.json").read_text())["seed"]
    counts = np.random.default_rng(seed).integers(0, 100, (8, 10)).tolist()
    clients, labels = [str(i) for i in range(8)], [str(i) for i in range(10)]
    title = f"s = 0%, seed {seed}"
    partition = {"title": title, "labels": labels, "clients": clients, "counts": counts}
    (folder / "partition.json").write_text(json.dumps(partition))
    return partition


def write_silos(folder: Path, silos: int = 8, named: bool = True, share: float = 1.0) -> Path:
    """Store records of each client, as if this share of them took part in every round."""
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    config = json.loads((folder / "config.json").read_text())
    algorithm = str(config["algorithm"]["name"])
    noise = np.random.default_rng([config["seed"], silos, len(algorithm)])
    names = [f"{PLACES[k % len(PLACES)]} {k // len(PLACES) + 1}" for k in range(silos)]
    hard, own = np.linspace(0, 0.3, silos), noise.normal(0, 0.03, silos)
    lines = []
    for record in rounds:
        part = sorted(noise.choice(silos, max(1, round(share * silos)), replace=False).tolist())
        loss = float(record["loss"]) if record["loss"] != "NaN" else 2.0
        line: dict[str, Any] = {"round": record["round"], "clients": part}
        line["loss"] = [loss * (1 + float(hard[k])) for k in part]
        line["clipped"] = [float(noise.random()) for _ in part]
        if algorithm not in UNCLIPPED:
            line["largest_norm"] = [float(0.1 + noise.random()) for _ in part]
        line["drift"] = [float(0.01 + noise.random()) for _ in part]
        if "metrics" in record:
            accuracy = min(1.0, max(0.0, record["metrics"]["test_accuracy"]))
            values = [float(min(1.0, max(0.0, accuracy - hard[k] + own[k]))) for k in range(silos)]
            if part != list(range(silos)):
                line["evaluated"] = list(range(silos))
            line["metrics"] = {"holdout_accuracy": values, "holdout_loss": [2 - v for v in values]}
        lines.append(line)
    (folder / "clients.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if named:
        (folder / "client_names.json").write_text(json.dumps(names))
    path = folder / "summary.json"
    if path.exists():
        found = summarise(read_lines(folder), names if named else [])
        path.write_text(json.dumps(json.loads(path.read_text()) | {"per_client": found}))
    return folder


def some_runs(folder: Path) -> Path:
    """Five configurations: two over three seeds, one diverged, one not finished."""
    for algorithm in ("celgc", "episode"):
        for seed in (0, 1, 2):
            make_run(folder / f"{algorithm}-{seed}", algorithm, seed)
    make_run(folder / "episode-4", "episode", 0, local_steps=4)
    make_run(folder / "fedavg-0", "fedavg", 0, status="diverged")
    make_run(folder / "scaffold-0", "scaffold", 0, rounds=20, status="running")
    return folder
