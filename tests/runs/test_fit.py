"""Arguments of `episode.fit`: every mistake is a sentence before anything is trained or written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import episode
from episode import EpisodeError, Monitor, Schedule, Uniform
from episode.results.store import read_json

HUGE = 10**5000


def loss(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def fit(**changes: Any) -> Any:
    torch.manual_seed(0)
    g = torch.Generator().manual_seed(0)
    silos = [(torch.randn(8, 2, generator=g), torch.randn(8, 1, generator=g)) for _ in range(3)]
    options: dict[str, Any] = {"eta": 0.1, "gamma": 0.1, "local_steps": 2, "rounds": 2}
    return episode.fit(nn.Linear(2, 1), silos, loss, **{**options, "batch_size": 4, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folder": 3}, "folder is 3: give the path of a folder"),
        ({"folder": ""}, "folder is ''"),
        ({"folder": b"x"}, "folder is b'x'"),
        ({"folder": "a\0b"}, "folder is 'a"),
        ({"schedule": "cosin"}, "There is no schedule 'cosin': did you mean 'cosine'"),
        ({"schedule": "step"}, r"schedule is 'step', but not when to step: give Schedule\("),
        ({"eta": None}, "eta is missing: give the step size"),
        ({"eta": None, "schedule": "cosine"}, "eta is missing: give the step size"),
        ({"gamma": None}, "gamma is missing: give the length γ of a clipped step"),
        ({"schedule": {}}, "schedule is {}"),
        ({"schedule": False}, "schedule is False"),
        ({"schedule": Schedule(torch.tensor(0.1), 0.1)}, "schedule.eta is tensor"),
        ({"cohorts": Uniform}, "cohorts is <class .*: give Full"),
        ({"cohorts": False}, "cohorts is False: give Full"),
        ({"engine": None}, "engine is None: give its name, such as 'simulation'"),
        ({"engine": episode.Engine}, "engine is <class .*: give its name"),
        ({"engine": "simulatoin"}, "did you mean 'simulation'"),
        ({"evaluate": 3}, "evaluate is 3: give a function"),
        ({"evaluate": False}, "evaluate is False: give a function"),
        ({"observe": "print"}, "observe is 'print': give a function"),
        ({"observe": False}, "observe is False: give a function"),
        ({"collate": None}, "collate is None: give a function"),
        ({"monitor": "yes"}, "monitor is 'yes': give True, False or a Monitor"),
        ({"monitor": Monitor}, "monitor is <class .*: give True, False or a Monitor"),
        ({"checkpoint_seconds": float("nan")}, "checkpoint_seconds is nan"),
        ({"checkpoint_seconds": -1}, "checkpoint_seconds is -1"),
        ({"checkpoint_seconds": None}, "checkpoint_seconds is None"),
        ({"timeout_seconds": float("nan")}, "timeout_seconds is nan"),
        ({"timeout_seconds": 0}, "timeout_seconds is 0"),
        ({"timeout_seconds": "3"}, "timeout_seconds is '3'"),
        ({"precision": torch.bfloat16}, "did you mean 'bfloat16'"),
        ({"precision": np.array(["a", "b"])}, "There is no precision"),
        ({"algorithm": True}, "algorithm is True: give a name"),
        ({"eta": True}, "eta is True: it must be a number"),
        ({"eta": np.True_}, "eta is np.True_: it must be a number"),
        ({"eta": HUGE}, "eta is too large for a float"),
        ({"gamma": np.array([0.1, 0.2])}, r"gamma is an? ndarray of shape \[2\]"),
        ({"rounds": True}, "rounds is True: it must be a whole number"),
        ({"rounds": np.float64(2)}, "it must be a whole number"),
        ({"rounds": -HUGE}, "rounds is an int: it must be 1 or more"),
        ({"rounds": 10**20}, "rounds is 100000000000000000000: it must be below 10"),
        ({"rounds": HUGE}, "rounds is an int: it must be below 10"),
        ({"client_names": 0}, "client_names is 0: give a list of names"),
        ({"client_names": "ab"}, "client_names is 'ab': give a list of names"),
        ({"local_steps": None}, "local_steps is None"),
        ({"batch_size": True}, "batch_size is True"),
        ({"batch_size": -HUGE}, "batch_size is an int: it must be 1 or more"),
        ({"seed": True}, "seed is True"),
        ({"seed": 2**63}, "it must be a whole number of 64 bits"),
        ({"workers": True}, "workers is True"),
        ({"evaluate_every": True}, "evaluate_every is True"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_leave_nothing(
    changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EpisodeError, match=message) as caught:
        fit(**changes)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_numbers_of_numpy_give_the_same_run_and_the_same_folder(tmp_path: Path) -> None:
    plain = fit(folder=tmp_path, eta=0.25, cohorts=Uniform(2), checkpoint_seconds=0, workers=1)
    numpys = fit(
        folder=tmp_path, eta=np.float32(0.25), gamma=np.float64(0.1), rounds=np.int64(2),
        local_steps=np.uint8(2), batch_size=np.int32(4), seed=np.int64(0), workers=np.int8(1),
        evaluate_every=np.int64(1), cohorts=Uniform(np.int64(2)), checkpoint_seconds=np.int64(0),
        timeout_seconds=np.float32(600),
    )  # fmt: skip
    assert torch.equal(plain.x, numpys.x)
    assert read_json(tmp_path / "config.json")["schedule"]["eta"] == 0.25


def test_whole_numbers_stay_what_they_were_in_stored_configs(tmp_path: Path) -> None:
    fit(folder=tmp_path, eta=1)
    assert '"eta": 1,' in (tmp_path / "config.json").read_text()


def test_a_schedule_may_be_a_name_and_has_then_the_given_constants() -> None:
    named = fit(schedule="cosine", rounds=4)
    whole = fit(schedule=Schedule(0.1, 0.1, kind="cosine"), rounds=4, eta=None, gamma=None)
    assert named.history[-1]["eta"] < 0.05
    assert torch.equal(named.x, whole.x)


def test_an_algorithm_that_does_not_clip_needs_no_gamma() -> None:
    assert torch.equal(fit(algorithm="fedavg", gamma=None).x, fit(algorithm="fedavg").x)
