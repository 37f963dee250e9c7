"""What a site must measure for a message, and in which ranges."""

from __future__ import annotations

from dataclasses import replace

import pytest
from flwr.app import MetricRecord

from episode import ALGORITHMS, Algorithm
from episode.federation.worker import CORRECTION_METRICS
from episode.flower.checks import Rejected, read_metrics
from episode.flower.messages import Ask

ASK = Ask(
    tag="",
    seed=0,
    algorithm="",
    phase="local",
    round=3,
    local_steps=1,
    eta=0.5,
    gamma=1.0,
    G_norm=1.0,
)
ALWAYS = {"clipped", "drift"}


def test_a_loss_is_missing_only_if_the_probe_was_the_only_batch() -> None:
    reusing = Algorithm.named("episode", reuse_probe=True)
    assert ASK.measured(ALGORITHMS["fedavg"], 0, False) == ALWAYS | {"loss"}
    assert ASK.measured(reusing, 0, True) == ALWAYS
    assert replace(ASK, local_steps=2).measured(reusing, 0, True) == ALWAYS | {"loss"}


def test_norms_are_measured_where_the_clipping_needs_them() -> None:
    episode = ALGORITHMS["episode"]
    assert "largest_norm" in ASK.measured(ALGORITHMS["celgc"], 0, False)
    assert "largest_norm" not in ASK.measured(episode, 0, True)
    assert "largest_norm" in replace(ASK, G_norm=3.0).measured(episode, 0, True)


def test_one_client_in_so_many_measures_its_correction() -> None:
    ask, episode = replace(ASK, measure_every=4), ALGORITHMS["episode"]
    assert [CORRECTION_METRICS[0] in ask.measured(episode, c, True) for c in range(4)] == [
        0,
        1,
        0,
        0,
    ]
    assert not ask.measured(episode, 1, False) & {*CORRECTION_METRICS}


@pytest.mark.parametrize("value", [-0.5, 1.5])
def test_a_share_is_from_0_to_1(value: float) -> None:
    assert read_metrics(MetricRecord({"clipped": 1.0}), ["clipped"], ["clipped"]) == {"clipped": 1}
    with pytest.raises(Rejected, match="which is not from 0 to 1"):
        read_metrics(MetricRecord({"clipped": value}), ["clipped"], ["clipped"])
