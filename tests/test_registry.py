"""Things are found by a built-in name, an entry point, a file or a module, or refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from episode import EpisodeError
from episode.registry import Registry, load_file


class Thing:
    """A thing of this test.

    With more to say.
    """


def registry() -> Registry[type]:
    return Registry("thing", "episode.test_things", {"own": Thing, "lazy": "decimal:Decimal"})


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with two entry points, of which one cannot be imported."""
    (tmp_path / "plugged_in.py").write_text("class Plug:\n    summary = 'a plug'\n")
    (tmp_path / "broken_plug.py").write_text("\n1 / 0\n")
    information = tmp_path / "plugged_in-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-in\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(
        "[episode.test_things]\nplug = plugged_in:Plug\nbroken = broken_plug:Plug\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("plugged_in", "broken_plug"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_it_is_a_mapping_of_the_built_in_things() -> None:
    things = registry()
    assert list(things) == ["own", "lazy"]
    assert things["lazy"].__name__ == "Decimal"
    assert "plug" not in things
    assert things.find("own") is Thing


def test_entry_points_are_found_listed_and_named(installed: Path) -> None:
    things = registry()
    plug = things.find("plug")
    assert things.names() == ["own", "lazy", "broken", "plug"]
    assert things.name_of(plug) == "plug"
    summaries = things.summaries()
    assert summaries["own"] == "A thing of this test."
    assert summaries["plug"] == "a plug"
    assert "ZeroDivisionError in line 2" in summaries["broken"]


def test_a_class_in_a_file_is_found_under_the_name_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text("class Mine: ...\n")
    monkeypatch.chdir(tmp_path)
    things = registry()
    found = things.find("mine.py:Mine")
    assert things.name_of(found) == "mine.py:Mine"
    assert things.find(f"{tmp_path}/mine.py:Mine") is found
    assert things.name_of(found) == f"{tmp_path}/mine.py:Mine"


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "same.py").write_text(f"WHERE = {folder!r}\n")
    assert [load_file(f"{tmp_path}/{f}/same.py").WHERE for f in "ab"] == ["a", "b"]


def test_a_class_in_a_module_is_found_and_named() -> None:
    things = registry()
    found = things.find("fractions:Fraction")
    assert things.name_of(found) == "fractions:Fraction"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", "onw", "There is no thing 'onw': did you mean 'own'"),
        ("", "file.py", r"Say which thing of file.py is meant: file.py:Name\."),
        ("", "file.py:", r"Say which thing of file.py is meant: file.py:Name\."),
        ("", "none.py:Mine", "There is no file none.py in"),
        ("class Mine: ...", "file.py:Mien", "There is no thing 'file.py:Mien': did you mean 'file"),
        ("\n1/0", "file.py:Mine", "file.py cannot be imported: ZeroDivisionError in line 2"),
        ("import numpy\n\nnumpy.zeros(-1)", "file.py:Mine", "ValueError in line 3"),
        ("def f(:", "file.py:Mine", "file.py cannot be imported: SyntaxError in line 1"),
        ("", "no_such_module.at_all:Mine", "no module 'no_such_module' is installed"),
        ("", "fractions:Fractoin", "did you mean 'fractions:Fraction'"),
        ("", "broken_plug:Plug", "broken_plug cannot be imported: ZeroDivisionError in line 2"),
        ("", "broken", "broken_plug cannot be imported"),
        ("", "__main__:Mine", "no thing '__main__:Mine' here: it was defined in a script"),
        ("", "file.py:Mine", "There is no thing 'file.py:Mine': use one of broken, lazy, own"),
    ],
)
def test_every_mistake_is_a_sentence(
    text: str, name: str, message: str, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (installed / "file.py").write_text(text)
    monkeypatch.chdir(installed)
    with pytest.raises(EpisodeError, match=message):
        registry().find(name)


def test_importing_it_does_not_import_torch() -> None:
    code = "import sys, episode.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
