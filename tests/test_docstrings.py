"""Docstrings of public names: complete, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
from typing import Any

import pytest

PUBLIC_MODULES = ("episode", "episode.flower", "episode.testing")


def public_objects() -> dict[str, Any]:
    """Return the classes and functions that are exported, by their full name."""
    found: dict[str, Any] = {}
    for name in PUBLIC_MODULES:
        module = importlib.import_module(name)
        found |= {f"{name}.{n}": getattr(module, n) for n in module.__all__}
    found["episode.optim.FederatedSGD"] = importlib.import_module("episode.optim").FederatedSGD
    return {n: o for n, o in found.items() if inspect.isclass(o) or inspect.isfunction(o)}


OBJECTS = public_objects()


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_a_public_name_says_what_it_is_and_shows_an_example(name: str) -> None:
    thing = OBJECTS[name]
    text = inspect.getdoc(thing) or ""
    summary = text.split("\n\n")[0]
    assert summary.rstrip().endswith((".", ":")), "a summary is a sentence"
    if not (inspect.isclass(thing) and issubclass(thing, Exception)):
        assert ">>>" in text, "an example that runs"
    if inspect.isfunction(thing):
        parameters = inspect.signature(thing).parameters
        missing = [p for p in parameters if f"    {p}: " not in text]
        assert not missing, f"Args without {missing}"
        returns = "Returns:" in text or "Yields:" in text
        assert returns or inspect.signature(thing).return_annotation == "None"


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_the_example_of_a_public_name_runs(name: str) -> None:
    thing = OBJECTS[name]
    module = importlib.import_module(thing.__module__)
    finder = doctest.DocTestFinder(recurse=False)
    for test in finder.find(thing, name, module, globs={**vars(module)}):
        result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test)
        assert result.failed == 0, f"{result.failed} of {result.attempted} lines"
