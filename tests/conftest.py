from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# The machine may be busy: a slow example is not a wrong one.
settings.register_profile("episode", deadline=None)
settings.load_profile("episode")


os.environ["HF_HUB_OFFLINE"] = "1"  # no test may ask the network


@pytest.fixture(autouse=True)
def _data_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has a data folder of its own, empty at first."""
    monkeypatch.setenv("EPISODE_HOME", str(tmp_path / "episode home"))


@pytest.fixture(autouse=True)
def _leave_nothing_behind() -> Iterator[None]:
    """Every test ends with the threads and the thread setting that it began with."""
    before, setting = set(threading.enumerate()), torch.get_num_threads()
    yield
    left = [t.name for t in threading.enumerate() if t not in before and "episode" in t.name]
    assert not left
    assert torch.get_num_threads() == setting
