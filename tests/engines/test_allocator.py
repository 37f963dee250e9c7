"""What the C library is told about memory that is freed."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from episode.engines.allocator import keep_freed_memory


def told(monkeypatch: pytest.MonkeyPatch, platform: str) -> list[tuple[int, int]]:
    """Return what the C library of a platform is told."""
    calls: list[tuple[int, int]] = []

    def library(name: str | None) -> Any:
        assert name is None
        return SimpleNamespace(mallopt=lambda option, value: calls.append((option, value)))

    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(ctypes, "CDLL", library)
    keep_freed_memory()
    return calls


def test_only_glibc_is_told_how_much_to_keep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of the options are those of glibc's malloc.h."""
    assert told(monkeypatch, "linux") == [(-3, 32 * 2**20), (-1, 512 * 2**20)]
    assert told(monkeypatch, "darwin") == []


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_a_c_library_without_the_option_is_left_alone(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str | None] = []

    def library(name: str | None) -> Any:
        asked.append(name)
        raise error("no mallopt")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", library)
    keep_freed_memory()
    assert asked == [None]
