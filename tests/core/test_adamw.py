"""AdamW on a client: torch's own steps, with corrected and clipped gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from episode import AdamW, Algorithm, Descent, EpisodeError, Guarded, PerStep, Resampled
from episode.core import Clipping, Episodic, Unclipped, Uncorrected
from episode.core.adamw import Moments


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def fresh(x: Tensor) -> Moments:
    return Moments.of(torch.zeros_like(x), torch.zeros_like(x), 0)


def test_without_correction_and_clipping_it_is_torchs() -> None:
    algorithm = Algorithm(Uncorrected(), Unclipped(), AdamW(weight_decay=0.1, beta2=0.9))
    ours = vector(1, -2)
    theirs = torch.nn.Parameter(ours.clone())
    optimizer = torch.optim.AdamW([theirs], lr=0.1, weight_decay=0.1, betas=(0.9, 0.9))
    moments = fresh(ours)
    for step in range(5):
        gradient = vector(3, 1) * ours + step
        theirs.grad = vector(3, 1) * theirs.detach() + step
        optimizer.step()
        algorithm.step(ours, gradient, None, moments, math.nan, 0.1, 1.0)
    assert torch.allclose(ours, theirs.detach(), rtol=1e-14)


@pytest.mark.parametrize(
    ("clipping", "G_norm", "length"),
    [
        (Unclipped(), 9.0, 5.0),
        (PerStep(), 9.0, 2.0),
        (Episodic(), 9.0, 2.0),
        (Episodic(), 1.0, 5.0),
        (Guarded(), 1.0, 2.0),
    ],
    ids=str,
)
def test_the_gradient_that_goes_in_is_corrected_and_clipped_to_gamma_over_eta(
    clipping: Clipping, G_norm: float, length: float
) -> None:
    """g = (1, 5) - (4, 1) = (-3, 4) of norm 5, and γ/η = 2."""
    algorithm = Algorithm(Resampled(), clipping, AdamW(beta1=0.0))
    x = vector(0, 0)
    moments = fresh(x)
    algorithm.step(x, vector(1, 5), vector(-4, -1), moments, G_norm, 0.1, 0.2)
    expected = vector(-0.6, 0.8) * length
    assert torch.allclose(moments.first, expected, rtol=1e-8)
    assert torch.allclose(moments.second, 1e-3 * expected**2, rtol=1e-8)
    assert torch.allclose(x, vector(0.1, -0.1), rtol=1e-6)  # η for each parameter, whatever γ is


def test_a_short_gradient_of_a_clipped_round_is_lengthened_to_gamma_over_eta() -> None:
    x = vector(0, 0)
    moments = fresh(x)
    algorithm = Algorithm(Resampled(), Episodic(), AdamW(beta1=0.0))
    algorithm.step(x, vector(0.3, 0.4), None, moments, 99.0, 0.1, 0.2)
    assert torch.allclose(moments.first, vector(1.2, 1.6), rtol=1e-8)


def test_a_norm_that_stays_on_a_device_clips_alike() -> None:
    ends = []
    for gamma in (0.2, vector(0.2)):
        x = vector(0, 0)
        moments = fresh(x)
        algorithm = Algorithm(Uncorrected(), PerStep(), AdamW())
        algorithm.step(x, vector(3, 4), None, moments, math.nan, 0.1, gamma)
        ends.append(moments.first)
    assert torch.allclose(*ends, rtol=1e-14)


def test_a_correction_is_believed_in_full_unless_told_otherwise() -> None:
    for descent in (AdamW(), Descent(), Descent(momentum=0.5)):
        velocity = vector(0) if descent.has_velocity else None
        assert descent.direction(vector(3), vector(4), velocity).tolist() == [7]


def test_steps_are_counted_where_the_moments_are() -> None:
    far = torch.empty(2, device="meta")
    assert [count.device.type for count in Moments.of([far, far], [far, far], 3).steps] == [
        "meta"
    ] * 2


def test_its_decay_is_no_part_of_the_gradient() -> None:
    gradient = vector(1)
    AdamW(weight_decay=0.5).decay_(gradient, vector(3))
    assert gradient.tolist() == [1]


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("parallel_sgd", {"descent": "adamw"}, "AdamW is a client's optimizer, but with Synchron"),
        ("minibatch_clip", {"descent": "adamw"}, "correction clients take no steps"),
        ("diloco", {"momentum": 0.9}, "AdamW has beta1 in place of momentum"),
        ("diloco", {"descent": {"beta1": 1.0}}, "beta1 is 1.0: it must be at least 0 and below 1"),
        ("diloco", {"descent": {"beta2": -1}}, "beta2 is -1"),
        ("diloco", {"descent": {"eps": 0}}, "eps is 0"),
        ("diloco", {"weight_decay": -1}, "weight_decay is -1"),
        (
            "diloco",
            {"descent": {"moments": "keep"}},
            "There is no moments 'keep': did you mean 'kept'",
        ),
    ],
)
def test_a_mistake_is_one_sentence(name: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(EpisodeError, match=says):
        Algorithm.named(name, **given)


def test_a_name_leads_to_other_descents_and_back() -> None:
    assert Algorithm.named("fedavg", descent="adamw").descent == AdamW()
    assert Algorithm.named("diloco", weight_decay=0.2).descent == AdamW(weight_decay=0.2)
    assert Algorithm.named("diloco", descent="sgd").descent == Descent()


def test_fields_that_are_zero_are_described_too() -> None:
    algorithm = Algorithm(Uncorrected(), Unclipped(), AdamW(weight_decay=0.0, beta1=0.0))
    assert Algorithm.from_dict(algorithm.to_dict()) == algorithm
