"""The theory's claims, measured: docs/theory.md quotes what this prints.

python examples/theory_claims.py
"""

from pathlib import Path

import torch

from episode.results.figures import as_image, new_figure
from episode.results.store import write_bytes
from episode.theory import claims

torch.set_num_threads(1)
FOLDER = Path("runs/theory")
CLIENTS = [1, 2, 4, 8, 16, 32, 64]
LOCAL_STEPS = [1, 4, 16, 64, 256]
KAPPAS = [0.25, 0.5, 1, 2, 4, 8]

made, played = claims.theorem_bound()
mean = played.norms.mean(0).mean().item()
print(f"Theorem 1's own η = {made.eta:.3g}, γ = {made.gamma:.3g}, R = {made.rounds}:")
print(f"  mean ‖∇f(x̄_r)‖ = {mean:.4f}, bound 3ε = {3 * made.epsilon:g}", flush=True)
print(f"  drift / Lemma 1: {played.drift_over_bound:.3f}, Hessian / Lemma 2: "
      f"{played.hessian_over_bound:.3f}")  # fmt: skip

print("Lemmas 1 and 2 at the largest η that Lemma 1 admits (figure / bound):")
for s, threshold, p in claims.lemmas():
    where = f"L1 {s.L1:g} κ {s.kappa:g} ρ {s.rho:g} σ {s.sigma:g} γ/η {threshold:g}"
    print(f"  {where}: {p.drift_over_bound:.4f}, {p.hessian_over_bound:.3f}", flush=True)

print("Resilience: rounds to ‖∇f‖ ≤ 0.1")
curves = {}
for name in ("episode", "celgc"):
    curves[name] = claims.resilience(KAPPAS, name)
    print(f"  {name}:", dict(zip(KAPPAS, curves[name], strict=True)), flush=True)

print("Linear speed-up: iterations to ‖∇f‖ ≤ 0.05")
iterations = claims.speed_up(CLIENTS)
print(" ", dict(zip(CLIENTS, iterations, strict=True)), flush=True)

print("Rounds against I, best η of a grid:")
rounds = claims.rounds_against_local_steps(LOCAL_STEPS)
print(" ", dict(zip(LOCAL_STEPS, rounds, strict=True)), flush=True)

figure = new_figure(figsize=(14, 4.4), layout="constrained")
axes = figure.subplots(1, 3)
axes[0].loglog(CLIENTS, iterations, "o-", color="#0072B2", label="EPISODE")
axes[0].loglog(
    CLIENTS, [iterations[0] / n for n in CLIENTS], ":", color="#777777", label="ideal, 1/N"
)
axes[0].set(xlabel="N, clients", ylabel="iterations to ‖∇f‖ ≤ 0.05", title="Linear speed-up")
axes[1].loglog(LOCAL_STEPS, rounds, "o-", color="#0072B2", label="EPISODE, best η")
axes[1].loglog(
    LOCAL_STEPS, [rounds[0] / i for i in LOCAL_STEPS], ":", color="#777777", label="ideal, 1/I"
)
axes[1].set(xlabel="I, local steps", ylabel="rounds", title="Rounds against I (N = 8)")
axes[2].loglog(KAPPAS, curves["episode"], "o-", color="#0072B2", label="EPISODE")
axes[2].loglog(KAPPAS, curves["celgc"], "x-", color="#E69F00", label="CELGC")
axes[2].set(xlabel="κ", ylabel="rounds to ‖∇f‖ ≤ 0.1", title="Resilience to κ")
for axis, ticks in zip(axes, (CLIENTS, LOCAL_STEPS, KAPPAS), strict=True):
    axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
    axis.minorticks_off()
    axis.grid(alpha=0.25)
    axis.legend(frameon=False)
axes[2].set_yticks([10, 20, 50], ["10", "20", "50"])  # less than a decade has no ticks of its own
write_bytes(FOLDER / "claims.png", as_image(figure, "png"))
print(f"Picture: {FOLDER / 'claims.png'}")
