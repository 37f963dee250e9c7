"""Mistakes that once gave tracebacks: values too deep, too large, or empty."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import make_run
from typer.testing import CliRunner

from episode.cli.main import app
from episode.errors import EpisodeError, is_too_large


def refusal(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert isinstance(done.exception, EpisodeError), (done.output, done.exception)
    return str(done.exception)


DEEP = "[" * 3000 + "]" * 3000
DOTTED = ".".join("a" * 500)


@pytest.mark.parametrize("text", [f"seed = {DEEP}", f"{DOTTED} = 1", f"seed = {'9' * 5000}"])
def test_a_deep_or_huge_config_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "deep.toml").write_text(text)
    for command in ("run", "sweep", "tune"):
        assert "deep.toml cannot be read" in refusal(command, str(tmp_path / "deep.toml"))


@pytest.mark.parametrize("value", [DEEP, "9" * 5000, "{a = " * 2000 + "1" + "}" * 2000])
def test_a_deep_or_huge_setting_is_one_sentence(value: str) -> None:
    assert "cannot be read" in refusal("run", "--dry-run", "--set", f"task.hidden={value}")
    assert "cannot be read" in refusal("sweep", "--dry-run", "--over", f"seed={value}")


def test_a_key_of_a_thousand_parts_is_one_sentence() -> None:
    assert "at most 40 parts" in refusal("run", "--dry-run", "--set", f"{DOTTED}=1")


@pytest.mark.parametrize("value", ["2020-01-01", "12:30:00", "1979-05-27T07:32:00Z"])
def test_dates_are_no_settings(value: str, tmp_path: Path) -> None:
    (tmp_path / "dates.toml").write_text(f"seed = {value}\n")
    for command in (["run", "--dry-run"], ["sweep", "--over", "algorithm=celgc"]):
        assert "holds a date or a time" in refusal(*command, str(tmp_path / "dates.toml"))
    assert f"seed is {value!r}" in refusal("run", "--dry-run", "--set", f"seed={value}")


@pytest.mark.parametrize("output", ["", "."])
def test_a_report_without_a_name_is_one_sentence(output: str, tmp_path: Path) -> None:
    make_run(tmp_path / "run")
    assert "is a folder: give the name" in refusal("report", str(tmp_path / "run"), "-o", output)


@pytest.mark.parametrize(
    "options",
    [
        ["--sigma", "1e308"], ["--kappa", "1e200"], ["--L0", "1e308"], ["--delta", "1e308"],
        ["--epsilon", "1e-200"], ["-N", str(10**400)], ["-I", str(10**400)], ["--rho", "1e308"],
        ["--sigma", "1e160", "--json"], ["--L1", "1e308"], ["--smoothness", "1e308"],
    ],
)  # fmt: skip
def test_constants_beyond_floating_point_are_one_sentence(options: list[str]) -> None:
    done = CliRunner().invoke(app, ["plan", *options])
    assert done.exception is None or isinstance(done.exception, EpisodeError), done.exception
    if options[0] != "--smoothness":
        assert done.exception is not None


@pytest.mark.parametrize("size", [10**12, 10**20, 2**62])
def test_a_model_larger_than_the_memory_is_one_sentence(size: int, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    message = refusal("run", "--folder", str(folder), "--set", f"task.hidden={size}")
    assert f"does not fit into the memory of this machine with task.hidden = {size}" in message
    assert not folder.exists()


def test_only_errors_about_memory_are_taken_for_such() -> None:
    assert is_too_large(MemoryError())
    assert not is_too_large(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
