"""How good the estimators and verdicts are, over ten seeds: docs/theory.md quotes what this prints.

python examples/theory_bars.py
"""

import torch
from torch import nn
from torch.nn import functional as F

import episode
from episode.data.partition import by_similarity
from episode.experiments.config import Experiment
from episode.tasks.digits import _load
from episode.tasks.relaxed import RelaxedSmooth
from episode.theory.diagnose import diagnose_task
from episode.theory.problems import relaxed_smooth
from episode.theory.trajectory import Options

SEEDS = range(10)
PROBLEMS = (
    RelaxedSmooth(L0=1, L1=1, kappa=1, rho=1.5, sigma=0.5, start_norm=20),
    RelaxedSmooth(L0=5, L1=1, kappa=2, rho=3, sigma=2, num_clients=4, start_norm=100),
)
MEASURE = Options(steps=20, batches=16, hessian_batches=16, local_steps=1)

for settings in PROBLEMS:
    ratios: dict[str, list[float]] = {n: [] for n in ("L0", "L1", "kappa", "rho", "sigma")}
    for seed in SEEDS:
        problem = relaxed_smooth(settings, seed)
        found = diagnose_task(problem.task, title="known", seed=seed, options=MEASURE).estimates
        for name, values in ratios.items():
            values.append(getattr(found, name) / getattr(problem.constants, name))
    print(settings)
    for name, values in ratios.items():
        print(f"  {name:<6} estimate / truth: {min(values):.2f} to {max(values):.2f}", flush=True)


def report(name: str, seed: int, d: episode.Diagnosis) -> None:
    """One line of a diagnosis."""
    v = d.verdict
    answers = f"price {v.price:.1f}, clipping {v.clipping}, correction {v.correction}"
    start = f"eta {v.eta:.2g}, gamma/eta {v.threshold:.2g}, I {v.local_steps}"
    print(f"{name} seed {seed}: {answers}, {v.algorithm}, {start}, {d.seconds:.0f} s", flush=True)


images, labels = _load(1, torch.float32)
for seed in range(5):
    parts = by_similarity(labels, 8, 0, seed)
    torch.manual_seed(seed)
    mlp = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 10))
    clients = [(images[p], labels[p]) for p in parts]
    loss = lambda model, batch: F.cross_entropy(model(batch[0]), batch[1])  # noqa: E731
    report("MLP", seed, episode.diagnose(mlp, clients, loss, batch_size=32, seed=seed))
for seed in range(5):
    for similarity in (0, 100) if seed == 0 else (0,):
        values = {"task": {"name": "digits", "similarity": similarity}, "seed": seed}
        task = Experiment.from_dict(values).task.build(seed, "cpu")
        report(f"RNN s={similarity}", seed, diagnose_task(task, title="digits", seed=seed))
