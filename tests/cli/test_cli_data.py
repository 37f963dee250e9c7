"""The data side of the command line: tables, pictures, sentences, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from official import write_cifar10, write_imagenet, write_snli, write_vectors

pytestmark = pytest.mark.slow


def episode(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "episode", *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_partition_is_a_table_and_a_picture(tmp_path: Path) -> None:
    done = episode("partition", "digits", "--similarity", 30, "--clients", 4, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1,436 of 1,438 examples are distributed" in done.stdout
    assert (tmp_path / "partition.png").read_bytes().startswith(b"\x89PNG")


def test_data_are_fetched_checked_found_and_trained_on(tmp_path: Path) -> None:
    folder = write_snli(tmp_path / "official")
    vectors = write_vectors(tmp_path / "vectors.txt.gz")
    for name, origin in (("snli", folder), ("glove", vectors)):
        assert episode("data", "fetch", name, "--from", origin, cwd=tmp_path).returncode == 0
    checked = episode("data", "check", "snli", "--json", cwd=tmp_path)
    assert json.loads(checked.stdout)["splits"]["train"]["neutral"] == 79
    assert "MB in" in episode("data", "where", cwd=tmp_path).stdout
    small = ["--set", "task.hidden=4", "--set", "task.num_clients=2", "--set", "budget.rounds=2"]
    run = episode("run", "--task", "snli", *small, "--json", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["status"] == "finished"
    assert "of the tokens" in run.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("data", "fetch", "snly"), "There is no dataset 'snly': did you mean 'snli'?"),
        (("data", "check", "snli"), "snli is not on this machine"),
        (("run", "--data", "nowhere", "--model", "lstm"), "There is no folder nowhere"),
        (("run", "--task", "none.py:T"), "There is no file none.py"),
        (("run", "--model", "lstm"), "give their folder with --data"),
        (("partition", "synthetic"), "has no examples to distribute"),
    ],
)
def test_a_mistake_is_a_sentence_and_exit_code_2(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    done = episode(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_file_is_exit_code_2_and_leaves_no_cache(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path / "cifar")
    (folder / "data_batch_3").write_bytes(b"cgarbage")
    done = episode("run", "--task", "cifar10", "--data", folder, cwd=tmp_path)
    assert done.returncode == 2
    assert "data_batch_3" in done.stderr
    kept = tmp_path / "episode home" / "prepared"
    assert not [p for p in kept.iterdir() if p.is_dir()]


def test_an_image_that_breaks_after_it_was_listed_is_a_mistake_in_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPISODE_HOME", str(tmp_path / "home"))
    folder = write_imagenet(tmp_path / "images")
    asked = ["--set", "task.width=4", "--set", "task.image_size=16", "--set", "budget.rounds=1"]
    asked += ["--set", "task.num_clients=2", "--set", "task.batch_size=18"]
    assert episode("partition", "imagenet", "--data", folder, cwd=tmp_path).returncode == 0
    for file in (folder / "train" / "n02").iterdir():
        file.write_bytes(b"no image")
    done = episode("run", "--task", "imagenet", "--data", folder, *asked, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "cannot be read (it is no image): replace it" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
