"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest

MODULES = [
    "core.algorithm", "core.clipping", "core.correction", "core.descent", "core.schedule",
    "registry", "tasks", "testing.check", "testing.contracts", "testing.maths",
]  # fmt: skip


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    results = doctest.testmod(import_module(f"episode.{name}"))
    assert results.attempted > 0
    assert results.failed == 0
