"""Checks that anyone can run on an algorithm, a task or an engine of their own.

Each `check_…` raises an AssertionError that names what failed, with its figure and its bound, and
returns the list of checks otherwise. `verify` runs them all on what this package offers.
"""

from episode.testing.check import Check
from episode.testing.contracts import check_algorithm, check_engine, check_task
from episode.testing.maths import verify

__all__ = ["Check", "check_algorithm", "check_engine", "check_task", "verify"]
