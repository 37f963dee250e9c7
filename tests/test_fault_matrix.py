"""The fault matrix: every cell has a test or a reason, and the page shows what the tests say."""

from __future__ import annotations

import re
from itertools import product

import pytest

from fault_matrix import (
    BEGIN,
    END,
    ENGINES,
    FAULTS,
    IMPOSSIBLE,
    PAGE,
    PHASES,
    RESUMES,
    Covered,
    printed,
    tables,
)


def cells(text: str) -> list[list[str]]:
    rows = [line for line in text.splitlines() if line.startswith("| **")]
    return [[cell.strip() for cell in row.split("|")[2:-1]] for row in rows]


def test_a_cell_without_a_test_is_empty_unless_it_says_why() -> None:
    place = ("simulation", "probe", "SIGKILL")
    text = tables([Covered(place, RESUMES, "test"), Covered(place, RESUMES, "another")])
    found = cells(text)
    assert found[0][0] == RESUMES
    assert found[0][1] == ""
    assert found[0][FAULTS.index("stale round")] == "cannot occur (a)"
    assert "- a. one process calls functions" in text
    assert (len(found), {len(row) for row in found}) == (15, {7})


@pytest.mark.slow
def test_the_page_has_the_matrix_of_the_tests_and_no_cell_is_empty() -> None:
    text = printed()
    page = PAGE.read_text()
    assert page.split(BEGIN)[1].split(END)[0] == text, "make fault-matrix OPTIONS=--write"
    for row in cells(text):
        for cell in row:
            assert re.search("resumes|named error|diverged|goes on|cannot occur", cell)


@pytest.mark.slow
def test_every_cell_has_a_test_or_a_reason_and_not_both() -> None:
    found = {tuple(line.split(": ")[0].split(" x ")) for line in printed("--tests").splitlines()}
    assert found | set(IMPOSSIBLE) == set(product(ENGINES, PHASES, FAULTS))
    assert not found & set(IMPOSSIBLE)
