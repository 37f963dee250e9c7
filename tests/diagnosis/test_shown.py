"""A diagnosis as people meet it: progress while it is made, and in notebooks."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch

import episode
from episode.diagnosis.findings import limits
from episode.diagnosis.options import DiagnosisOptions


def test_a_diagnosis_says_what_it_measures_and_shows_itself_in_notebooks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "episode")
    x = torch.linspace(-1, 2, 20)[:, None]
    found = episode.diagnose(
        torch.nn.Linear(1, 1),
        [(x, 2 * x), (x + 1, x)],
        loss=lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        batch_size=10,
        options=DiagnosisOptions(steps=6, points=4, local_steps=4, rehearsal=16),
        progress=True,
    )
    assert "Diagnosis of Linear: " in caplog.text
    page = found._repr_html_()
    for finding in found.verdict.findings:
        assert finding.question in page
    assert page.startswith("<table><caption>Diagnosis of Linear")
    assert "In no short run did f fall by a tenth" not in str(found)
    flat = tuple(
        replace(r, half=0.95 * r.before, after=0.95 * r.before) for r in found.short_runs.runs
    )
    runs = replace(found.short_runs, runs=flat)
    verdict = replace(found.verdict, unknown=limits(found.estimates, runs))
    assert "In no short run did f fall by a tenth" in str(
        replace(found, short_runs=runs, verdict=verdict)
    )
