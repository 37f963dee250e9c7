"""Whatever data and folders are called, on a terminal it is only text."""

from __future__ import annotations

import io
import json
import logging
import warnings
from pathlib import Path
from typing import Any

import pytest
from made_runs import make_run
from typer.testing import CliRunner

from episode.cli import data, main, progress, terminal
from episode.errors import EpisodeError
from episode.results.plain_text import escape_json, printable
from episode.results.tables import Table

NASTY = "a\x1b[31m\x1b]0;title\x07\x9b2J\r\x08\u202eb\ud800"
SPELT = r"a\x1b[31m\x1b]0;title\x07\x9b2J\r\x08\u202eb\ud800"


def console(**options: Any) -> tuple[terminal.PlainConsole, io.StringIO]:
    file = io.StringIO()
    return terminal.PlainConsole(file=file, width=200, **options), file


def test_labels_in_brackets_are_not_taken_for_markup() -> None:
    out, file = console(force_terminal=True, color_system="truecolor")
    out.print(Table("[bold]runs", ["[urgent]", ":smile:"], [["[/red]", "[link=x]y"]]))
    out.print("[urgent] :smile:")
    shown = file.getvalue()
    for text in ("[bold]runs", "[urgent]", ":smile:", "[/red]", "[link=x]y", "[urgent] :smile:"):
        assert text in shown


def test_control_characters_are_spelt_out() -> None:
    out, file = console()
    out.print(NASTY)
    out.print(Table(NASTY, [NASTY, "n"], [[f"{NASTY}\n", "1"]]))
    assert file.getvalue().count(SPELT) == 4
    assert printable("two\nlines\tand é λ 中") == "two\nlines\tand é λ 中"
    assert printable("two\nlines", one_line=True) == r"two\nlines"
    table = Table("", ["x"], [[NASTY + "\n"]])
    assert SPELT + r"\n" in table.markdown()
    assert "\x1b" not in table.latex()


def test_json_is_escaped_and_means_the_same() -> None:
    out, file = console()
    values = {NASTY: [NASTY, "é", 1.5]}
    out.print_json(data=values)
    text = file.getvalue()
    assert json.loads(text) == values
    assert "é" in text
    assert not {"\x1b", "\x9b", "\u202e", "\ud800"} & set(text)
    assert escape_json('"\x9b"') == '"\\u009b"'


def test_messages_warnings_and_progress_are_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    err, file = console(force_terminal=True)
    for module in (main, progress, data):
        monkeypatch.setattr(module, "err", err)

    def fail(standalone_mode: bool) -> None:
        recorded = NASTY[:-1]  # xdist cannot send a lone surrogate
        warnings.warn(f"[beware] {recorded}", stacklevel=1)
        logging.getLogger("episode").info("[noted] %s", recorded)
        with progress.RunProgress(quiet=False) as bars, data._progress():
            bars._bars.add_task(printable(f"[run] {NASTY}", one_line=True), state="[state]")
        raise EpisodeError(f"[mistake] {NASTY}")

    monkeypatch.setattr(main, "app", fail)
    with monkeypatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        patch.setattr(warnings, "showwarning", None)
        with pytest.raises(SystemExit) as ended:
            main.main()
    logging.getLogger("episode").handlers = []
    assert ended.value.code == 2
    shown = file.getvalue()
    for word in ("[beware]", "[noted]", "[run]", "[state]", "[mistake]"):
        assert word in shown
    assert shown.count(SPELT) >= 2
    assert shown.count(SPELT.removesuffix(r"\ud800")) >= 4
    assert "\x1b]0" not in shown
    assert "\x9b" not in shown


@pytest.mark.parametrize("command", [["compare"], ["watch", "--once"], ["compare", "--json"]])
def test_a_folder_cannot_reach_the_terminal(command: list[str], tmp_path: Path) -> None:
    folder = make_run(tmp_path / "a", algorithm="x")
    path = folder / "config.json"
    nasty = "[urgent]\x1b]0;owned\x07\x9b2J"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"algorithm": {"name": nasty}}))
    other = make_run(tmp_path / "b")
    done = CliRunner().invoke(main.app, [*command, str(folder), str(other)])
    assert done.exit_code == 0, done.output
    assert "[urgent]" in done.stdout
    assert "\x1b" not in done.stdout
    assert "\x9b" not in done.stdout


def test_labels_of_data_cannot_reach_the_terminal(tmp_path: Path) -> None:
    for silo in "ab":
        (tmp_path / "silos" / silo).mkdir(parents=True)
        rows = [
            {"text": f"t{n}", "label": "[urgent]\x1b[2J" if n % 2 else "$\\x{"} for n in range(8)
        ]
        text = "\n".join(map(json.dumps, rows))
        (tmp_path / "silos" / silo / "rows.jsonl").write_text(text)
    arguments = ["partition", "silos", "--data", str(tmp_path / "silos")]
    arguments += ["--picture", str(tmp_path / "p.png")]
    done = CliRunner().invoke(main.app, arguments)
    assert done.exit_code == 0, done.output
    assert r"[urgent]\x1b[2J" in done.stdout
    assert "\x1b" not in done.stdout
