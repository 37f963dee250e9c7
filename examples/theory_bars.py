"""Measure how good the estimates and verdicts of `diagnose` are; docs/theory.md quotes this.

    python examples/theory_bars.py                      # everything, about half an hour
    python examples/theory_bars.py verdicts agreement   # only these, of the parts below

Diagnoses are stored in runs/theory/verdicts, where the parts that need them read them back.
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from episode import ALGORITHMS, Schedule
from episode.data.partition import by_similarity
from episode.diagnosis.diagnose import diagnose_task
from episode.diagnosis.known_problems import relaxed_smooth
from episode.diagnosis.options import DiagnosisOptions
from episode.engines.simulation import Simulation
from episode.federation.rounds import Plan, Rounds
from episode.federation.state import ServerState
from episode.randomness import permutation
from episode.results.store import dumps, write_bytes
from episode.tasks.digits import Digits, cross_entropy
from episode.tasks.neural import NeuralTask
from episode.tasks.relaxed_smooth import RelaxedSmooth

FOLDER = Path("runs/theory/verdicts")
PROBLEMS = (
    RelaxedSmooth(L0=1, L1=1, kappa=1, rho=1.5, sigma=0.5, start_norm=20),
    RelaxedSmooth(L0=5, L1=1, kappa=2, rho=3, sigma=2, num_clients=4, start_norm=100),
)
MEASURE = DiagnosisOptions(steps=20, batches=16, hessian_batches=16, local_steps=1, rehearsal=1)
LIGHT = DiagnosisOptions(hessian_clients=1, hessian_batches=1)
"""Hessian norms take half of the time of a diagnosis, and no answer depends on them."""
SEVEN = (
    "naive_parallel_clip", "fedavg", "scaffold", "celgc", "scaffold_clipped",
    "episode_unclipped", "episode",
)  # fmt: skip
"""Algorithms of the ablation; episode_guarded, which is ours, is added to them."""
ITERATIONS = 480
SEEDS = {"elman": range(5), "mlp": range(5), "elman_alike": range(1), "lstm": range(2)}
"""The LSTM was held out: no rule or threshold of the verdict was chosen with its results."""


class LastState(nn.Module):
    """A linear layer on an LSTM's last state."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.LSTM(8, 32, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, sequence: Tensor) -> Tensor:
        """Return scores `[batch, classes]`."""
        scores: Tensor = self.head(self.encoder(sequence)[0][:, -1])
        return scores


def mlp() -> nn.Module:
    """Return a network 64-32-10 with tanh, which has a smooth loss."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))


def digits(make: Callable[[], nn.Module], time_steps: int, seed: int) -> NeuralTask:
    """Build the digits task (8 clients, sorted by label) for another network."""
    pixels, classes = load_digits(return_X_y=True)
    standardised = torch.tensor((pixels - pixels.mean()) / pixels.std(), dtype=torch.float32)
    images, labels = standardised.view(len(pixels), time_steps, -1), torch.tensor(classes)
    test, train = permutation(len(labels), 0, "digits", "test").tensor_split(
        [round(0.2 * len(labels))]
    )
    parts = by_similarity(labels[train], 8, 0, seed)
    torch.manual_seed(seed)
    splits = {"test": (images[test], labels[test]), "train": (images[train], labels[train])}
    return NeuralTask(
        make(),
        [(images[train[p]], labels[train[p]]) for p in parts],
        cross_entropy,
        batch_size=32,
        seed=seed,
        evaluate=lambda module: metrics(module, splits),
    )


def metrics(model: nn.Module, splits: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Return loss and accuracy on each split."""
    found: dict[str, float] = {}
    for name, (inputs, labels) in splits.items():
        scores = model(inputs)
        found[f"{name}_loss"] = F.cross_entropy(scores, labels).item()
        found[f"{name}_accuracy"] = (scores.argmax(1) == labels).double().mean().item()
    return found


@cache
def task(network: str, seed: int) -> NeuralTask:
    """Build the task of a network."""
    if network in ("mlp", "lstm"):
        return digits(*{"mlp": (mlp, 1), "lstm": (LastState, 8)}[network], seed)
    return Digits(similarity=100 * (network == "elman_alike")).build(seed, "cpu")


def estimators() -> None:
    """Print estimates divided by the truth, on problems with known constants."""
    for settings in PROBLEMS:
        ratios: dict[str, list[float]] = {n: [] for n in ("L0", "L1", "kappa", "rho", "sigma")}
        for seed in range(10):
            problem = relaxed_smooth(settings, seed)
            found = diagnose_task(problem.task, title="known", seed=seed, options=MEASURE).estimates
            for name, values in ratios.items():
                values.append(getattr(found, name) / getattr(problem.constants, name))
        print(settings)
        for name, values in ratios.items():
            print(f"  {name:<6} estimate / truth: {min(values):.2f} to {max(values):.2f}")


def verdicts() -> None:
    """Diagnose each network and seed, and print one line for each."""
    for network, seeds in SEEDS.items():
        for seed in seeds:
            kept = FOLDER / f"{network}-{seed}.json"
            if not kept.exists():
                found = diagnose_task(task(network, seed), title=network, seed=seed, options=LIGHT)
                write_bytes(kept, dumps(found.to_dict(), indent=2).encode())
            d = json.loads(kept.read_text())
            v, r = d["verdict"], d["rehearsal"]
            ends = {n: r[n]["after"] for n in ("plain", "clipped", "plain_there", "uncorrected")}
            print(
                f"{network} seed {seed}: clipping {v['clipping']} (from η {v['clipping_from']}), "
                f"correction {v['correction']}, "
                f"{v['algorithm']}, η {v['eta']:.3g} (plain {v['plain_eta']:.3g}), γ/η "
                f"{r['chosen']['threshold']:.3g}, I {v['local_steps']}, "
                f"f {r['chosen']['after']:.3g} "
                f"({', '.join(f'{n} {float(e):.3g}' for n, e in ends.items())}), "
                f"{d['seconds']:.0f} s",
                flush=True,
            )


def agreement() -> None:
    """Train every algorithm with the verdict's settings; print test accuracy and training loss."""
    for network, seeds in SEEDS.items():
        for seed in seeds:
            eta, threshold, steps = settings_of(network, seed)
            print(f"{network} seed {seed}, η {eta:.3g}, γ/η {threshold:.3g}, I {steps}:", end="")
            for name in (*SEVEN, "episode_guarded"):
                print(f" {name} {train(network, seed, name, eta, threshold, steps)}", end="")
                sys.stdout.flush()
            print()


def drift() -> None:
    """Train with other numbers of local steps, for the same number of iterations."""
    for network in ("elman", "mlp", "lstm"):
        eta, threshold, steps = settings_of(network, 0)
        clips = json.loads((FOLDER / f"{network}-0.json").read_text())["verdict"]["clipping"]
        name = "episode_guarded" if clips else "episode_unclipped"
        print(f"{network}, {name}, η {eta:.3g}, γ/η {threshold:.3g}, verdict I {steps}:", end="")
        for count in (1, 2, 4, 8, 16, 32, 64):
            print(f" I={count} {train(network, 0, name, eta, threshold, count)}", end="")
            sys.stdout.flush()
        print()


def settings_of(network: str, seed: int) -> tuple[float, float, int]:
    """Return the verdict's η, γ/η and I; γ/η even if it advises against clipping."""
    chosen = json.loads((FOLDER / f"{network}-{seed}.json").read_text())["rehearsal"]["chosen"]
    return chosen["eta"], chosen["threshold"], chosen["local_steps"]


def train(network: str, seed: int, name: str, eta: float, threshold: float, steps: int) -> str:
    """Train for as many iterations as the demo; return test accuracy/training loss."""
    algorithm, problem = ALGORITHMS[name], task(network, seed)
    plan = Plan(algorithm, Schedule(eta, eta * threshold), ITERATIONS // steps, steps, seed)
    engine = Simulation(problem, algorithm)
    server = ServerState(*problem.initial())
    try:
        rounds = Rounds(plan, problem, engine)
        for _ in range(plan.rounds_to_play):
            rounds.play(server)
    finally:
        engine.close()
    found = problem.evaluate(server.x, server.buffers)
    return f"{found['test_accuracy']:.3f}/{found['train_loss']:.2f}"


PARTS = {f.__name__: f for f in (estimators, verdicts, agreement, drift)}

if __name__ == "__main__":
    if wrong := set(sys.argv[1:]) - PARTS.keys():
        sys.exit(f"There is no part {min(wrong)!r}: use {', '.join(PARTS)}.")
    for part in sys.argv[1:] or PARTS:
        PARTS[part]()
