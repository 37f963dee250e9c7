"""Checks that anyone can run on an algorithm, a task or an engine of their own.

Each `check_…` returns the list of its checks, or raises an AssertionError that names those that
failed, with the measured value and its bound. `verify` runs every check on this package itself.
"""

from episode.testing.check import Check
from episode.testing.contracts import check_algorithm, check_engine, check_task
from episode.testing.maths import verify

__all__ = ["Check", "check_algorithm", "check_engine", "check_task", "verify"]
