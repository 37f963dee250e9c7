"""The verifier is worth nothing unless it fails on the bugs that peers really shipped.

Each test plants one: four ways in which frameworks got SCAFFOLD wrong, and a few of EPISODE.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from episode.core import Descent, FedOpt, MeasuredTrust, ServerSGD, clipping
from episode.core.vectors import add_, difference, dot
from episode.engines.simulation import Simulation
from episode.federation import worker
from episode.federation.corrections import new_memory
from episode.federation.protocols import Phase, Reply
from episode.federation.state import ClientState
from episode.federation.worker import Worker
from episode.testing import maths
from episode.testing.problems import in_this_process

pytestmark = pytest.mark.slow


def failed(*groups: Any, make_engine: Any = in_this_process) -> list[str]:
    """What the given groups of checks find wrong; a crash of the planted bug counts as found."""
    return [c.claim for group in groups for c in group(make_engine) if not c.passed]


def about(name: str, claims: list[str]) -> list[str]:
    return [claim for claim in claims if claim.startswith(name + " ")]


def assert_scaffold_is_caught(claims: list[str]) -> None:
    """By both nets: where it ends, and how it got there."""
    assert about("scaffold ends", claims) or about("scaffold", claims)
    assert any("ends at a minimum" in c for c in about("scaffold", claims))
    assert any("plain program" in c for c in about("scaffold", claims))


GRID = json.loads((Path(__file__).parents[1] / "golden" / "trajectories.json").read_text())
"""Correction x clipping, and nothing else."""
SERVERS = ["fedavgm", "fedadam", "fedyogi", "fedadagrad", "episode_nesterov"]


def nets(*names: str) -> tuple[Any, Any]:
    """Both nets, for these algorithms only."""
    return partial(maths.fixed_points, names=names), partial(maths.trajectories, names=names)


NETS = nets(*GRID)


def test_nothing_is_caught_where_nothing_is_planted() -> None:
    assert failed(*NETS) == []


def test_scaffold_with_the_sign_of_the_correction_wrong_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Worker._correction

    def wrong(self: Worker, state: ClientState, G: torch.Tensor | None) -> Any:
        shift = right(self, state, G)
        if shift is not None:
            self._shift.neg_()
        return shift

    monkeypatch.setattr(Worker, "_correction", wrong)
    assert_scaffold_is_caught(failed(*NETS))


def test_scaffold_with_the_correction_never_applied_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Worker, "_correction", lambda self, state, G: None)
    claims = failed(*NETS)
    assert_scaffold_is_caught(claims)
    assert about("episode", claims)


def test_scaffold_with_the_clients_memory_never_stored_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def forgetful(gradients: torch.Tensor, count: int, old: torch.Tensor | None) -> Any:
        _, change = new_memory(gradients, count, old)
        return old, change

    monkeypatch.setattr(worker, "new_memory", forgetful)
    assert_scaffold_is_caught(failed(*NETS))


def test_scaffold_with_only_the_last_clients_change_kept_is_caught() -> None:
    class LastOnly(Simulation):
        def average(
            self, phase: Phase, cohort: Sequence[int], *, weights: Sequence[float], **broadcast: Any
        ) -> Reply:
            last: dict[str, torch.Tensor] = {}
            serve = self._serve

            def watched(worker: Worker, phase: Phase, client: int, broadcast: Any) -> Reply:
                reply = serve(worker, phase, client, broadcast)
                if client == cohort[-1]:
                    last.update(reply.vectors)
                return reply

            self._serve = watched  # type: ignore[method-assign]
            mean = super().average(phase, cohort, weights=weights, **broadcast)
            self._serve = serve  # type: ignore[method-assign]
            if "change" in mean.vectors:
                mean.vectors["change"] = last["change"]
            return mean

    claims = failed(*NETS, make_engine=lambda task, algorithm: LastOnly(task, algorithm, 1))
    assert_scaffold_is_caught(claims)


def test_scaffolds_popular_memory_formula_is_caught_under_clipping(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Worker.local

    def popular(self: Worker, client: int, state: ClientState, **given: Any) -> Reply:
        before = state.memory
        reply = right(self, client, state, **given)
        if self.algorithm.correction.remembers:
            moved = (given["x"] - reply.vectors["x"]) / (given["eta"] * given["local_steps"])
            old = torch.zeros_like(moved) if before is None else before
            state.memory = old - given["G"] + moved
            reply.vectors["change"] = state.memory - old
        return reply

    monkeypatch.setattr(Worker, "local", popular)
    claims = failed(NETS[1], maths.memory_under_clipping)
    assert about("scaffold_clipped", claims)
    assert not about("scaffold", claims)  # without clipping the formula is right


def test_clipping_decided_by_the_step_instead_of_the_round_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(clipping.Episodic, "step_size", clipping.PerStep().step_size)
    claims = failed(NETS[1])
    assert about("episode", claims)
    assert not about("celgc", claims)


def test_a_probe_batch_used_again_by_the_first_step_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = Worker.local

    def thrifty(self: Worker, client: int, state: ClientState, **given: Any) -> Reply:
        gradient = self.objective.gradient

        def same_stream(draw: Any) -> Any:
            first = draw.index % given["local_steps"] == 0
            return gradient(type(draw)(client, "probe", given["round"]) if first else draw)

        self.objective.gradient = same_stream  # type: ignore[method-assign]
        try:
            return right(self, client, state, **given)
        finally:
            self.objective.gradient = gradient  # type: ignore[method-assign]

    monkeypatch.setattr(Worker, "local", thrifty)
    assert about("episode", failed(NETS[1]))


def failed_with_trust(monkeypatch: pytest.MonkeyPatch, of_step: Any) -> list[str]:
    """Return the claims that fail once trust is measured by this function."""
    monkeypatch.setattr(MeasuredTrust, "of_step", of_step)
    return failed(NETS[1])


def only_about(name: str, claims: list[str]) -> bool:
    """Whether there are claims, and all of them are about this algorithm."""
    return bool(claims) and about(name, claims) == claims


def test_trust_measured_against_the_wrong_vector_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_itself(self: MeasuredTrust, gradient: Any, shift: Any, deviation: Any, age: Any) -> Any:
        return self.weight(dot(gradient, gradient), deviation, age)

    assert only_about("episode_trust", failed_with_trust(monkeypatch, of_itself))


def test_trust_of_the_wrong_sign_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def negated(self: MeasuredTrust, gradient: Any, shift: Any, deviation: Any, age: Any) -> Any:
        return self.weight(dot(gradient, shift), deviation, age)

    assert only_about("episode_trust", failed_with_trust(monkeypatch, negated))


def test_trust_that_is_not_clamped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def boundless(self: MeasuredTrust, gradient: Any, shift: Any, deviation: Any, age: Any) -> Any:
        return -dot(gradient, shift) / deviation

    assert only_about("episode_trust", failed_with_trust(monkeypatch, boundless))


@pytest.mark.parametrize(
    ("bug", "change"),
    [("ignored", lambda age: 0.0), ("counted from 1", lambda age: age and age + 1)],
)
def test_a_wrong_age_of_corrections_is_caught(
    monkeypatch: pytest.MonkeyPatch, bug: str, change: Any
) -> None:
    right = MeasuredTrust.of_step

    def wrong(self: MeasuredTrust, gradient: Any, shift: Any, deviation: Any, age: Any) -> Any:
        return right(self, gradient, shift, deviation, change(age))

    assert only_about("episode_trust", failed_with_trust(monkeypatch, wrong)), bug


def test_one_trust_for_all_clients_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the client that came first, instead of each one's own."""
    first: list[Any] = []
    right = MeasuredTrust.of_step

    def shared(self: MeasuredTrust, gradient: Any, shift: Any, deviation: Any, age: Any) -> Any:
        first.append(right(self, gradient, shift, deviation, age))
        return first[0]

    assert only_about("episode_trust", failed_with_trust(monkeypatch, shared))


def test_the_pseudo_gradient_with_the_wrong_sign_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Δ = x̄_r - mean(x_i), which leads uphill; a server that takes the mean has no Δ."""
    for server in (FedOpt, ServerSGD):

        def wrong(self: Any, x: Any, mean: Any, held: Any, right: Any = server.step) -> Any:
            return right(self, x, 2 * x - mean, held)

        monkeypatch.setattr(server, "step", wrong)
    claims = failed(*nets("fedavg", *SERVERS))
    for name in SERVERS:
        assert any("plain program" in claim for claim in about(name, claims)), name
    assert any("ends at a minimum" in claim for claim in about("episode_nesterov", claims))
    assert not about("fedavg", claims)


@pytest.mark.parametrize("forgotten", ["m", "v", "velocity"])
def test_a_server_that_forgets_is_caught(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for server in (FedOpt, ServerSGD):

        def forgetful(self: Any, x: Any, mean: Any, held: Any, right: Any = server.step) -> Any:
            held.pop(forgotten, None)
            return right(self, x, mean, held)

        monkeypatch.setattr(server, "step", forgetful)
    name = "fedavgm" if forgotten == "velocity" else "fedadam"
    assert about(name, failed(nets(name)[1]))


@pytest.mark.parametrize("factor", [0.5, 2.0, -1.0])
def test_a_proximal_term_with_another_factor_is_caught(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """μ/2 (x - x̄) is in a common implementation: the gradient of μ/2 ‖x - x̄‖² is μ(x - x̄)."""

    def wrong(self: Descent, gradient: Any, x: Any, start: Any) -> None:
        add_(gradient, difference(x, start), scale=factor * self.proximal)

    monkeypatch.setattr(Descent, "pull_", wrong)
    claims = failed(nets("fedavg", "fedprox")[1])
    assert about("fedprox", claims) == claims != []


def test_a_proximal_term_around_another_point_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Around zero it is weight decay."""
    monkeypatch.setattr(
        Descent, "pull_", lambda self, gradient, x, start: add_(gradient, x, self.proximal)
    )
    assert about("fedprox", failed(nets("fedprox")[1]))


def test_moments_that_clients_share_or_forget_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Worker._moments
    shared = ClientState()
    for planted in (shared, None):

        def wrong(self: Worker, state: ClientState, planted: Any = planted) -> Any:
            return right(self, planted or ClientState())

        monkeypatch.setattr(Worker, "_moments", wrong)
        assert about("diloco", failed(nets("diloco")[1]))


def test_a_mini_batch_of_one_batch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Worker.probe

    def thrifty(self: Worker, client: int, state: ClientState, **given: Any) -> Reply:
        return right(self, client, state, **given | {"batches": 1})

    monkeypatch.setattr(Worker, "probe", thrifty)
    assert about("minibatch_clip", failed(nets("minibatch_clip")[1]))
