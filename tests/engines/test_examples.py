"""What the documentation tells people to type, typed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from launch import PROGRAMS, ranks, torchrun

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_fit_runs_on_a_cluster_and_tells_of_a_failing_client_on_all_ranks(tmp_path: Path) -> None:
    for ended in ranks(2, [str(PROGRAMS / "fit_together.py"), str(tmp_path / "run")]):
        assert ended.code == 0, ended.output
        assert "Client 2 failed in the probe phase of round 0" in ended.output
        assert "these numbers are too large" in ended.output


@pytest.mark.long
def test_the_optimizer_example_learns() -> None:
    ended = torchrun(2, [str(ROOT / "examples" / "train_with_optimizer.py")], timeout=240)
    assert ended.code == 0, ended.output
    last = re.findall(r"step 1200: ([\d.]+)%", ended.output)
    assert len(last) == 1
    assert float(last[0]) > 70


@pytest.mark.long
def test_the_trainer_and_accelerate_give_the_numbers_of_fit(tmp_path: Path) -> None:
    ended = torchrun(2, [str(PROGRAMS / "trainer_numbers.py"), str(tmp_path)])
    assert ended.code == 0, ended.output
    found = re.findall(r"(accelerate|trainer): error (\S+), same True", ended.output)
    assert [name for name, _ in found] == ["accelerate", "trainer"]
    assert all(float(error) < 1e-5 for _, error in found)
    assert ended.output.count("would clip each gradient before the optimizer corrects it: set") == 2


@pytest.mark.long
@pytest.mark.parametrize("name", ["trainer_silos", "accelerate_silos"])
def test_the_examples_of_hugging_face_learn(name: str) -> None:
    ended = torchrun(2, [str(ROOT / "examples" / f"{name}.py")])
    assert ended.code == 0, ended.output
    (correct,) = re.findall(r"([\d.]+)% of all silos' examples are correct", ended.output)
    assert float(correct) > 70


@pytest.mark.long
def test_adapters_of_a_transformer_have_the_numbers_of_the_simulation(tmp_path: Path) -> None:
    ended = torchrun(2, [str(PROGRAMS / "adapters_together.py"), str(tmp_path)])
    assert ended.code == 0, ended.output
    found = re.findall(r"(fedavg|episode): gap (\S+)", ended.output)
    assert sorted(name for name, _ in found) == ["episode", "episode", "fedavg", "fedavg"]
    assert all(float(gap) < 1e-6 for _, gap in found)


@pytest.mark.long
def test_the_engine_example_runs(tmp_path: Path) -> None:
    command = ["-m", "episode", "run", str(ROOT / "examples" / "digits.toml")]
    command += ["--set", "budget.rounds=3", "--folder", str(tmp_path / "run")]
    ended = torchrun(2, command)
    assert ended.code == 0, ended.output
    assert "2; 6 collectives, " in ended.output


def test_the_wide_area_benchmark_says_why_it_cannot_run() -> None:
    program = "import os; os.geteuid = lambda: 1000; import runpy; "
    program += f"runpy.run_path({str(ROOT / 'benchmarks' / 'wide_area.py')!r}, run_name='__main__')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "benchmarks")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "cannot run here: it needs root" in done.stderr
    assert "Traceback" not in done.stderr
