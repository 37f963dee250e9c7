"""A check, and the one that all others rest on: an algorithm follows its plain program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from episode.core import AdamW, Algorithm, ServerStep, Trust, Unclipped
from episode.federation.sampling import Cohorts
from episode.testing import plain
from episode.testing.problems import MakeEngine, QuadraticProblem, distance, play

EXACT = 1e-12
"""Bound for two float64 programs that compute the same sums in another order."""


@dataclass(frozen=True)
class Check:
    """A claim, the value that was measured, and the bound that it must respect.

    Args:
        claim: What should hold.
        value: The measured value.
        bound: The largest allowed value.
        at_least: Whether the bound is the smallest allowed value instead.

    Example:
        >>> check = Check("two runs differ by", 0.0, 1e-12)
        >>> check.passed
        True
        >>> print(check)
        two runs differ by: 0 (must be <= 1e-12)
    """

    claim: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def passed(self) -> bool:
        """Whether the value respects the bound."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def __str__(self) -> str:
        relation = ">=" if self.at_least else "<="
        return f"{self.claim}: {self.value:.3g} (must be {relation} {self.bound:.3g})"


def against_plain(
    name: str,
    algorithm: Algorithm,
    problem: QuadraticProblem,
    make_engine: MakeEngine,
    cohorts: Cohorts | None = None,
) -> Check:
    """Play thirty rounds on the engine and in the plain program, and compare every point."""
    played = play(problem, algorithm, 30, make_engine, cohorts)
    clients = len(problem.slopes)
    drawn = [cohorts.at(r, clients, 0) for r in range(30)] if cohorts else None
    path = plain_path(algorithm, problem.setting(30, drawn))
    return Check(f"{name} follows its plain program, to", distance(played.path, path), EXACT)


def plain_path(algorithm: Algorithm, setting: plain.Setting) -> Sequence[plain.Vector]:
    """Run the plain program that the algorithm's correction and clipping ask for."""
    correction, clipping = algorithm.correction, algorithm.clipping
    rule: Any = plain.RULES.get(type(clipping), clipping.step_size)
    trust = plain_trust(algorithm.trust)
    setting = replace(
        setting,
        server=plain_server(algorithm.server),
        probe_batches=algorithm.batches_of_probe(setting.local_steps),
        proximal=algorithm.descent.proximal,
        clips_steps=not isinstance(clipping, Unclipped),
    )
    if isinstance(algorithm.descent, AdamW):
        names = ("beta1", "beta2", "eps", "weight_decay", "moments")
        own = {name: getattr(algorithm.descent, name) for name in names}
        setting = replace(setting, local=plain.local_adamw(**own), clips_steps=False)
    if not correction.steps_locally:
        once = algorithm.probe_batches == "local_steps"
        return plain.synchronous(
            setting, rule, setting.rounds * (1 if once else setting.local_steps)
        )
    if correction.probes:
        return plain.resampled(setting, rule, trust, algorithm.reuse_probe)
    if correction.remembers:
        first = clipping.needs_global or algorithm.probe_first
        return plain.remembered(setting, rule, trust, probe_first=first)
    return plain.uncorrected(setting, rule)


def plain_trust(trust: Trust) -> plain.Trust:
    """Return the plain rule of trust; one of your own is asked for its `weight` and `ageing`."""
    if make := plain.TRUSTS.get(type(trust)):
        return make(**asdict(trust))

    def rule(held: float, square: float, G: float, threshold: float, t: int) -> float:
        return float(trust.weight(held, square, t * trust.ageing(G, threshold, square)))

    return rule


def plain_server(server: ServerStep) -> plain.Server:
    """Return the plain server step; one of your own is asked for its `step`."""
    if make := plain.SERVERS.get(type(server)):
        return make(**asdict(server))
    held: dict[str, Tensor] = {}

    def step(x: plain.Vector, mean: plain.Vector) -> plain.Vector:
        return server.step(torch.from_numpy(x), torch.from_numpy(mean), held).numpy()

    return step
