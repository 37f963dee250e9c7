"""The paper's synthetic experiment, whole: 9 settings x 4 H x 2 algorithms x 10 seeds at once.

python examples/synthetic_figure.py
Prints where each algorithm ends at the published setting, and draws runs/synthetic.png.
"""

from pathlib import Path

import matplotlib as mpl
import torch

from episode.paper.synthetic import SyntheticGrid, synthetic_paths
from episode.results.figures import STYLES
from episode.tasks.synthetic import minimum

mpl.use("Agg")
import matplotlib.pyplot as plt

grid = SyntheticGrid()
paths = {name: synthetic_paths(name, grid) for name in ("celgc", "episode")}

figure, axes = plt.subplots(1, 4, figsize=(15, 3.6), layout="constrained")
print(f"{'H':>2}  {'algorithm':<8} {'ends at x':>10} {'f(x)':>10} {'min f':>10}")
for k, H in enumerate(grid.heterogeneity):
    best = minimum(H)[1]
    axes[k].axhline(best, color="#999999", linewidth=1, label="minimum")
    for name, path in paths.items():
        # The published setting: η = 0.01, γ/η = 5; mean over the ten seeds.
        values = path.value[:, 1, 0, k].mean(-1)
        end = path.x[-1, 1, 0, k].mean().item()
        print(f"{H:>2}  {name:<8} {end:>10.3f} {values[-1].item():>10.3f} {best:>10.3f}")
        axes[k].plot(torch.arange(len(values)), values, color=STYLES[name][0], label=name)
    axes[k].set_title(f"H = {H:g}")
    axes[k].set_xlabel("rounds")
axes[0].set_ylabel("f(x)")
axes[0].legend(frameon=False)
output = Path("runs/synthetic.png")
output.parent.mkdir(exist_ok=True)
figure.savefig(output, dpi=130)
print(f"Drawn: {output}")
