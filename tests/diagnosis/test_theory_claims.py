"""What examples/theory_claims.py measures: the lemmas hold, and more clients speed training up."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "theory_claims.py"


@pytest.fixture(scope="module")
def claims() -> ModuleType:
    spec = importlib.util.spec_from_file_location(EXAMPLE.stem, EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[EXAMPLE.stem] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_lemmas_are_never_violated_and_clients_that_differ_stall_celgc(claims: ModuleType) -> None:
    for _, _, measured in claims.lemmas(seeds=2, rounds=20):
        assert measured.drift_over_bound <= 1 + 1e-9
        assert measured.hessian_over_bound <= 1
    few, many = claims.resilience([0.5, 8], "episode")
    assert many <= few
    few, many = claims.resilience([0.5, 8], "celgc")
    assert many > 3 * few


def test_more_clients_need_fewer_iterations_in_proportion(claims: ModuleType) -> None:
    four, sixteen, many = claims.speed_up([4, 16, 64], seeds=2)
    assert 2.5 < four / sixteen < 6.5
    assert 2.5 < sixteen / many < 6.5
