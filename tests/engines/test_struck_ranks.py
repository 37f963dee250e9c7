"""Ranks of a cluster that a fault strikes in any phase: all of them say what happened, or go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from launch import PROGRAMS, ranks

from episode.results.store import read_json, read_rounds
from fault_matrix import DIVERGED, PHASES, RECORDED, error_within

pytestmark = pytest.mark.long
SECONDS = 20.0
"""Longer than any error here takes on a busy machine."""
HERE = str(Path(__file__).parent)


class Outcomes:
    """How each run has ended, on each rank."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._found: dict[tuple[str, int], dict[str, Any]] = {}
        for rank, ended in enumerate(
            ranks(2, [str(PROGRAMS / "struck_ranks.py"), str(place)], PYTHONPATH=HERE)
        ):
            assert ended.code == 0, ended.output
            for line in ended.output.splitlines():
                if line.startswith("{"):
                    found = json.loads(line)
                    self._found[found["case"], rank] = found

    def of(self, case: str) -> list[dict[str, Any]]:
        return [self._found[case, rank] for rank in range(2)]

    def assert_named(self, case: str, *reasons: str) -> None:
        """Check that each rank has ended in time, and gives its reason."""
        for found, reason in zip(self.of(case), reasons, strict=True):
            assert reason in found["error"], found
            assert found["seconds"] < SECONDS


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    return Outcomes(tmp_path_factory.mktemp("struck"))


@pytest.mark.parametrize("case", ["read back", "without a summary"])
def test_a_run_that_has_played_all_rounds_is_the_same_on_every_rank_when_started_again(
    case: str, outcomes: Outcomes
) -> None:
    """Without a summary, as if it was killed between the last checkpoint and its end."""
    whole = {**outcomes.of("undisturbed")[0], "case": case}
    assert len(whole["losses"]) == 4
    assert whole["summary"]["per_client"]
    assert outcomes.of(case) == [whole, {**whole, "rank": 1}]


@pytest.mark.fault(engine="torchrun", fault="NaN", outcome=DIVERGED)
@pytest.mark.parametrize("phase", ["probe", "local", "average"])
def test_a_nan_of_one_rank_ends_the_run_of_all_as_diverged(phase: str, outcomes: Outcomes) -> None:
    case = f"NaN, {phase}"
    assert [found["status"] for found in outcomes.of(case)] == ["diverged", "diverged"]
    summary = read_json(outcomes.place / case / "summary.json")
    assert "in round 2" in summary["reason"]


@pytest.mark.fault(engine="torchrun", phase="evaluate", fault="NaN", outcome=RECORDED)
def test_a_metric_that_is_not_a_number_is_recorded(outcomes: Outcomes) -> None:
    whole, struck = outcomes.of("undisturbed"), outcomes.of("NaN, evaluate")
    assert [found["x"] for found in struck] == [found["x"] for found in whole]
    rounds = read_rounds(outcomes.place / "NaN, evaluate" / "rounds.jsonl")
    assert [r["metrics"]["size"] != r["metrics"]["size"] for r in rounds] == [0, 0, 1, 0]


@pytest.mark.fault(engine="torchrun", fault="wrong shape", outcome=error_within(SECONDS))
@pytest.mark.parametrize("phase", ["probe", "local"])
def test_a_gradient_of_another_shape_is_the_error_of_its_client(
    phase: str, outcomes: Outcomes
) -> None:
    error = f"Client 1 failed in the {phase} phase of round 2: RuntimeError: The size of tensor"
    stopped = f"Rank 0 stops in the {phase} phase of round 2: rank 1 failed: {error}"
    outcomes.assert_named(f"wrong shape, {phase}", stopped, error)


@pytest.mark.fault(
    engine="torchrun", phase="average", fault="wrong shape", outcome=error_within(SECONDS)
)
def test_models_of_different_shapes_are_refused_before_anything_is_added_up(
    outcomes: Outcomes,
) -> None:
    error = "Ranks 0 and 1 are about to run different things: config.task.initial_state"
    outcomes.assert_named("wrong shape, average", error, error)


@pytest.mark.fault(
    engine="torchrun", phase="evaluate", fault="wrong shape", outcome=error_within(SECONDS)
)
def test_metrics_of_another_shape_are_an_error_that_all_ranks_report(outcomes: Outcomes) -> None:
    error = "evaluate(model) returned {'size': tensor(["
    outcomes.assert_named("wrong shape, evaluate", error, f"rank 0 failed: {error}")


@pytest.mark.fault(engine="torchrun", phase="checkpoint", outcome=error_within(SECONDS))
@pytest.mark.parametrize("fault", ["NaN", "wrong shape", "stale round"])
def test_a_part_of_a_checkpoint_with_other_contents_than_were_meant_is_refused(
    fault: str, outcomes: Outcomes
) -> None:
    """The disk stores other numbers or fewer than it was given, or those of the time before."""
    error = "clients-4-rank-1-of-2.safetensors is damaged: remove the run's folder"
    assert [found["status"] for found in outcomes.of(f"{fault}, checkpoint")] == ["finished"] * 2
    outcomes.assert_named(f"{fault}, checkpoint, again", error, error)


@pytest.mark.fault(engine="torchrun", fault="stale round", outcome=error_within(SECONDS))
@pytest.mark.parametrize(
    "phase",
    [
        "probe",
        pytest.param(
            "local",
            marks=pytest.mark.fault(
                engine="torchrun",
                phase="average",
                fault="stale round",
                outcome=error_within(SECONDS),
            ),
        ),
    ],
)
def test_a_rank_that_is_a_round_behind_is_found_out_at_once(phase: str, outcomes: Outcomes) -> None:
    error = "Rank 1 plays round 1, and rank 0 round 2: start all ranks again"
    outcomes.assert_named(f"stale round, {phase}", error, error)


@pytest.mark.fault(engine="torchrun", fault="disk full", outcome=error_within(SECONDS))
@pytest.mark.parametrize("phase", PHASES)
def test_a_full_disk_stops_all_ranks_that_resume_once_there_is_room(
    phase: str, outcomes: Outcomes
) -> None:
    outcomes.assert_named(f"disk full, {phase}", "File too large", "rank 0 failed: ")
    again, whole = outcomes.of(f"disk full, {phase}, again"), outcomes.of("undisturbed")
    assert [found["x"] for found in again] == [found["x"] for found in whole]


@pytest.mark.fault(engine="torchrun", fault="deleted folder", outcome=error_within(SECONDS))
@pytest.mark.parametrize("phase", PHASES)
def test_ranks_whose_folder_is_deleted_stop_and_do_not_make_it_again(
    phase: str, outcomes: Outcomes
) -> None:
    """Each rank notices when it is about to write, or is told by the other."""
    for found in outcomes.of(f"deleted folder, {phase}"):
        assert "was removed" in found["error"] or "its folder is gone" in found["error"], found
        assert found["seconds"] < SECONDS
    assert not (outcomes.place / f"deleted folder, {phase}").exists()
