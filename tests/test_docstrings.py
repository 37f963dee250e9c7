"""Docstrings of public names: complete, and their examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path
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


SOURCE = Path(__file__).parents[1] / "src"
WITH_EXAMPLES = sorted(
    ".".join(file.relative_to(SOURCE).with_suffix("").parts)
    for file in SOURCE.rglob("*.py")
    if ">>>" in file.read_text()
)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_in_docstrings_are_true(module: str) -> None:
    found = importlib.import_module(module.removesuffix(".__init__"))
    result = doctest.testmod(found, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
