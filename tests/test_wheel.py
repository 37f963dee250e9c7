"""The wheel as strangers meet it: in an environment with nothing but what it asks for.

Nothing is downloaded: the packages that the wheel requires are linked from this environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SOURCES = ("src", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE", "CHANGELOG.md")
pytestmark = pytest.mark.long


def command(*arguments: object, cwd: Path, code: int = 0) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "COV_"))}
    done = subprocess.run(
        [str(a) for a in arguments],
        cwd=cwd, env=clean, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a wheel and an sdist, built from a copy of the sources."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        origin = ROOT / name
        if origin.is_dir():
            ignored = shutil.ignore_patterns("*.egg-info", "__pycache__")
            shutil.copytree(origin, folder / name, ignore=ignored)
        else:
            shutil.copy(origin, folder)
    command(sys.executable, "-m", "build", "--no-isolation", folder, cwd=folder)
    return folder / "dist"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the programs of a fresh environment that holds the wheel and what it requires."""
    folder = tmp_path_factory.mktemp("environment")
    command(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    [packages] = (folder / "lib").glob("python*/site-packages")
    [wheel] = built.glob("*.whl")
    for name in required(wheel):
        link(name, packages)
    python = folder / "bin" / "python"
    install = ("-m", "pip", "--python", python, "install", "--no-index", wheel)
    command(sys.executable, *install, cwd=folder)
    return folder / "bin"


def required(wheel: Path) -> list[str]:
    """Return the names of all distributions that the wheel needs without any extra."""
    with zipfile.ZipFile(wheel) as file:
        [metadata] = [n for n in file.namelist() if n.endswith("METADATA")]
        lines = file.read(metadata).decode().splitlines()
    wanted = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist: ")]
    found: list[str] = []
    while wanted:
        requirement = Requirement(wanted.pop())
        marker = requirement.marker
        if requirement.name in found or (marker and not marker.evaluate({"extra": ""})):
            continue
        found.append(requirement.name)
        wanted += distribution(requirement.name).requires or []
    return found


def link(name: str, packages: Path) -> None:
    """Link the files of a distribution of this environment into another one."""
    there = distribution(name)
    tops = {path.parts[0] for path in there.files or [] if path.parts[0] not in ("..", ".")}
    for top in tops - {"__pycache__", "bin"}:
        target = packages / top
        if not target.exists():
            target.symlink_to(str(there.locate_file(top)))


def test_wheel_and_sdist_pass_the_checks_of_the_index(built: Path) -> None:
    files = sorted(built.iterdir())
    assert [f.name.split("-")[0] for f in files] == ["episode_fl", "episode_fl"]
    told = command(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=built)
    assert told.count("PASSED") == 2


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    found = {n for n in names if ".dist-info/" not in n}
    package = [p for p in (ROOT / "src/episode").rglob("*") if p.is_file()]
    ours = {str(p.relative_to(ROOT / "src")) for p in package if "__pycache__" not in p.parts}
    assert found == ours
    assert any(n.endswith("licenses/LICENSE") for n in names)
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        inside = {n.partition("/")[2] for n in file.getnames()}
    assert {f"src/{n}" for n in ours} | {"pyproject.toml", "CHANGELOG.md", "LICENSE"} <= inside


def test_the_demo_works_from_the_wheel_alone(installed: Path, tmp_path: Path) -> None:
    where = command(
        installed / "python", "-c", "import episode; print(episode.__file__)", cwd=tmp_path
    )
    assert str(installed.parent) in where
    told = command(installed / "episode", "demo", "--rounds", "2", "--folder", "demo", cwd=tmp_path)
    assert "naive_parallel_clip" in told
    assert "episode_guarded" in told
    assert (tmp_path / "demo" / "demo.png").read_bytes().startswith(b"\x89PNG")


def test_what_an_extra_is_needed_for_says_what_to_install(installed: Path, tmp_path: Path) -> None:
    program = installed / "episode"
    command(program, "run", "--set", "budget.rounds=1", "--folder", "run", cwd=tmp_path)
    for arguments, extra in (
        (("report", "run"), "plot"),
        (("tune", "--sampler", "tpe", "--search", "schedule.eta=0.1..1"), "tune"),
        (("run", "--track", "--folder", "tracked"), "track"),
        (("run", "--engine", "flower", "--folder", "flower"), "flower"),
    ):
        told = command(program, *arguments, cwd=tmp_path, code=2)
        assert f"pip install 'episode-fl[{extra}]'." in told
        assert "constraints" not in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(installed: Path, tmp_path: Path, shell: str) -> None:
    variables = ["_EPISODE_COMPLETE=complete_" + shell, "COMP_WORDS=episode dem", "COMP_CWORD=1"]
    variables += ["_TYPER_COMPLETE_ARGS=episode dem", "_TYPER_COMPLETE_FISH_ACTION=get-args"]
    assert "demo" in command("env", *variables, installed / "episode", cwd=tmp_path)
    script = command(installed / "episode", "--show-completion", shell, cwd=tmp_path)
    assert "_EPISODE_COMPLETE" in script
