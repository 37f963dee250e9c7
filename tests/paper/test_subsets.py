"""The four tasks on real subsets in official formats, where EPISODE_TEST_DATA names their folder.

It holds snli_1.0/, sentiment140/, cifar10/, tiny_imagenet/*.tar.gz and glove/glove.6B.50d.txt.gz.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from episode.runs.config import Experiment
from episode.runs.trainer import job_of, train

SUBSETS = Path(os.environ.get("EPISODE_TEST_DATA", "nowhere"))
PLACES = {
    "snli": "snli_1.0",
    "sentiment140": "sentiment140",
    "cifar10": "cifar10",
    "imagenet": "tiny_imagenet/tiny_imagenet_subset.tar.gz",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SUBSETS.is_dir(), reason="EPISODE_TEST_DATA names no folder"),
]


@pytest.mark.parametrize("name", PLACES)
def test_a_task_trains_resumes_and_evaluates_on_real_data(name: str, tmp_path: Path) -> None:
    task: dict[str, Any] = {"name": name, "data": str(SUBSETS / PLACES[name]), "batch_size": 16}
    if name in ("snli", "sentiment140"):
        task["vectors"] = str(SUBSETS / "glove" / "glove.6B.50d.txt.gz")
    chosen = Experiment.from_dict(
        {
            "task": task,
            "budget": {"rounds": 3, "local_steps": 2},
            "record": {"evaluate_every": 0},
        }
    )
    whole = train(job_of(chosen), tmp_path / "whole")
    assert whole.status == "finished"
    asked: list[int] = []
    with pytest.raises(KeyboardInterrupt):
        train(job_of(chosen), tmp_path / "cut", stop=lambda: bool(asked.append(1)) or True)
    resumed = train(job_of(chosen), tmp_path / "cut")
    assert torch.equal(resumed.x, whole.x)
    assert resumed.summary["metrics"] == whole.summary["metrics"]
