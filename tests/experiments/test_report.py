"""The report: what it holds, what it refuses, and how it behaves in a real browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from made_runs import make_run

from episode.errors import EpisodeError
from episode.experiments.config import Experiment, read_experiment
from episode.experiments.extras import command_of, extras_of
from episode.results.groups import grouped
from episode.results.report import write_report
from episode.results.store import find_runs, read_run


def packed(page: Path) -> dict[str, Any]:
    """The page's data, with every column as the list of its numbers, read by its own rules."""
    text = page.read_text()

    def unpack(name: str) -> bytes:
        found = re.search(rf'id="{name}">([^<]*)<', text)
        assert found
        return gzip.decompress(base64.b64decode(found[1]))

    data: dict[str, Any] = json.loads(unpack("data"))
    blob = unpack("numbers")
    numbers = struct.unpack(f"<{len(blob) // 8}d", blob)
    for run in data["runs"]:
        for table in ("columns", "figures"):
            for name, (start, count) in run[table].items():
                values = numbers[start : start + count]
                run[table][name] = [None if v != v else v for v in values]
    return data


def some_runs(folder: Path) -> Path:
    for algorithm in ("celgc", "episode"):
        for seed in (0, 1, 2):
            make_run(folder / f"{algorithm}-{seed}", algorithm, seed)
    make_run(folder / "fedavg-0", "fedavg", 0, status="diverged")
    make_run(folder / "scaffold-0", "scaffold", 0, rounds=20, status="running")
    return folder


def test_the_page_holds_every_figure_to_the_last_digit(tmp_path: Path) -> None:
    runs = find_runs([some_runs(tmp_path / "runs")])
    write_report(runs, tmp_path / "r.html")
    data = packed(tmp_path / "r.html")
    assert [r["name"] for r in data["runs"]] == [r.folder.name for r in runs]
    for shown, run in zip(data["runs"], runs, strict=True):
        for key in ("seconds", "drift", "global_norm", "threshold", "exchanges"):
            assert shown["columns"][key] == [r[key] for r in run.rounds]
        assert shown["figures"]["test_accuracy"] == [
            r["figures"]["test_accuracy"] for r in run.rounds if "figures" in r
        ]


def test_the_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    write_report(find_runs([some_runs(tmp_path / "runs")]), tmp_path / "r.html")
    text = (tmp_path / "r.html").read_text()
    ours = text[: text.index("plotly.js v")] if "plotly.js v" in text else text
    assert not re.search(r"<(?:script|link|img)[^>]+(?:src|href)=[\"']https?:", ours)


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "a<script>alert(1)<", "episode")
    write_report(find_runs([tmp_path / "runs"]), tmp_path / "r.html", title="<b>&")
    text = (tmp_path / "r.html").read_text()
    assert "a<script>" not in text
    assert "<title>&lt;b&gt;&amp;</title>" in text


def test_groups_take_the_mean_over_finished_seeds_only(tmp_path: Path) -> None:
    accuracies = []
    for seed in (0, 1):
        folder = make_run(tmp_path / f"{seed}", seed=seed)
        accuracies.append(read_run(folder).summary["figures"]["test_accuracy"])
    make_run(tmp_path / "2", seed=2, status="diverged")
    (group,) = grouped(find_runs([tmp_path]))
    spread = group.figure("test_accuracy")
    assert spread is not None
    assert spread.mean == pytest.approx(sum(accuracies) / 2, rel=1e-15)
    assert spread.deviation == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert group.status() == "1 diverged"


def test_bad_folders_are_one_sentence_each(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="There is no folder"):
        find_runs([tmp_path / "nowhere"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(EpisodeError, match="is not a run's folder and holds none"):
        find_runs([tmp_path / "empty"])
    make_run(tmp_path / "both" / "a", task="digits")
    make_run(tmp_path / "both" / "b", task="snli")
    with pytest.raises(EpisodeError, match=r"different tasks \(digits, snli\)"):
        grouped(find_runs([tmp_path / "both"]))
    half = make_run(tmp_path / "half", status="running")
    (half / "config.json").write_text('{"seed": 0, "ta')
    with pytest.raises(EpisodeError, match=r"config\.json cannot be read"):
        find_runs([half])


def test_a_run_without_rounds_yet_is_shown_as_not_finished(tmp_path: Path) -> None:
    make_run(tmp_path / "a")
    empty = make_run(tmp_path / "b", seed=1, status="running")
    (empty / "rounds.jsonl").unlink()
    runs = find_runs([tmp_path])
    write_report(runs, tmp_path / "r.html")
    assert "b: not finished" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm=celgc", "schedule.eta=0.3", "seed=4"],
        ["algorithm.correction=resampled", "algorithm.clipping=per_step", "task.similarity=30"],
        ["task=snli", "task.scale=paper", "schedule.kind=constant", "schedule.milestones=[]"],
    ],
)
def test_the_command_to_repeat_a_run_gives_the_same_run(overrides: list[str]) -> None:
    import shlex

    experiment = read_experiment(None, overrides)
    words = shlex.split(command_of({**experiment.to_dict(), "id": experiment.id}))
    assert words[:2] == ["episode", "run"]
    again = read_experiment(None, words[3::2])
    assert isinstance(again, Experiment)
    assert again.id == experiment.id


WAIT = 30.0


def open_page(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    deadline = time.monotonic() + WAIT
    while browser.execute_script("return document.documentElement.dataset.ready") != "yes":
        assert time.monotonic() < deadline, browser.get_log("browser")
        time.sleep(0.05)
    browser.execute_script("drawAll()")


def choose(browser: Any, control: str, value: str) -> None:
    """As a person with a keyboard would: focus, and the value's own name typed or stepped to."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element(By.ID, control)).select_by_value(value)


def drawn(browser: Any, plot: str) -> list[dict[str, Any]]:
    script = "return document.getElementById(arguments[0]).data.map(t => ({x: t.x, y: t.y,"
    return browser.execute_script(script + " name: t.name, meta: t.meta, z: t.z}))", plot)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # selenium leaves a pipe to collect
def test_in_a_browser_every_control_changes_what_it_should(tmp_path: Path) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    runs = find_runs([some_runs(tmp_path / "runs")])
    page = tmp_path / "r.html"
    write_report(runs, page, extras=extras_of(runs))
    by_name = {r.folder.name: r for r in runs}
    with chromium() as browser:
        open_page(browser, page)

        # Each axis and figure, to the digit.
        choose(browser, "view", "each")
        axes = {
            "round": lambda r: r["round"] + 1, "exchanges": lambda r: r["exchanges"],
            "bytes": lambda r: (r["bytes_up"] + r["bytes_down"]) / 1e6,
            "gradients": lambda r: r["gradients"], "seconds": lambda r: r["seconds"],
        }  # fmt: skip
        for axis, read in axes.items():
            choose(browser, "axis", axis)
            for figure in ("test_accuracy", "train_loss"):
                choose(browser, "figure", figure)
                curves = {t["meta"]: t for t in drawn(browser, "curves")}
                for name, run in by_name.items():
                    rounds = [r for r in run.rounds if "figures" in r]
                    assert curves[name]["x"] == [read(r) for r in rounds]
                    assert curves[name]["y"] == [r["figures"][figure] for r in rounds]
        assert any(t["meta"] == "diverged" for t in drawn(browser, "curves"))
        drift = {t["meta"]: t for t in drawn(browser, "drift")}
        assert drift["celgc-1"]["y"] == [r["drift"] for r in by_name["celgc-1"].rounds]

        # Means over seeds.
        choose(browser, "view", "mean")
        choose(browser, "figure", "test_accuracy")
        means = {t["name"]: t for t in drawn(browser, "curves") if t["meta"] == "mean"}
        last = [by_name[f"episode-{s}"].rounds[-1]["figures"]["test_accuracy"] for s in range(3)]
        mean = next(t for name, t in means.items() if name.startswith("episode"))
        assert mean["y"][-1] == pytest.approx(sum(last) / 3, rel=1e-14)

        # Log scales, algorithms, theme.
        browser.find_element(By.ID, "logy").click()
        kind = "return document.getElementById('curves').layout.yaxis.type"
        assert browser.execute_script(kind) == "log"
        before = len(drawn(browser, "curves"))
        box = browser.find_element(By.CSS_SELECTOR, "#algorithms input[value=celgc]")
        box.send_keys(Keys.SPACE)
        assert len(drawn(browser, "curves")) < before
        rows = [r.text for r in browser.find_elements(By.CSS_SELECTOR, "#target-rows tr")]
        assert not any(r.startswith("celgc") for r in rows)
        box.send_keys(Keys.SPACE)
        choose(browser, "theme", "dark")
        background = "return getComputedStyle(document.body).backgroundColor"
        assert browser.execute_script(background) == "rgb(22, 24, 28)"
        choose(browser, "theme", "light")
        assert browser.execute_script(background) == "rgb(255, 255, 255)"

        # Cost to a target, against our own search.
        field = browser.find_element(By.ID, "target")
        field.clear()
        field.send_keys("0.6")
        row = next(
            r
            for r in browser.find_elements(By.CSS_SELECTOR, "#target-rows tr")
            if r.text.startswith("episode")
        )
        cells = row.find_elements(By.TAG_NAME, "td")
        firsts = [
            next(r for r in by_name[f"episode-{s}"].rounds if r["figures"]["test_accuracy"] >= 0.6)
            for s in range(3)
        ]
        assert cells[0].text == "3 of 3"
        assert float(cells[2].get_attribute("data-value")) == pytest.approx(
            sum(r["exchanges"] for r in firsts) / 3
        )
        assert float(cells[5].get_attribute("data-value")) == pytest.approx(
            sum(r["seconds"] for r in firsts) / 3
        )
        choose(browser, "target-figure", "train_loss")
        assert browser.find_element(By.ID, "target-sense").text == "at most"

        # Clipping of a chosen run.
        choose(browser, "axis", "round")
        place = [r.folder.name for r in runs].index("episode-2")
        choose(browser, "clipping-run", str(place))
        clipping = {t["meta"]: t for t in drawn(browser, "clipping")}
        rounds = by_name["episode-2"].rounds
        assert clipping["global_norm"]["y"] == [r["global_norm"] for r in rounds]
        assert clipping["threshold"]["y"] == [r["threshold"] for r in rounds]
        words = browser.find_element(By.ID, "clipping-words").text
        assert words.startswith(f"{sum(r['clipped'] for r in rounds)} of {len(rounds)} rounds")

        # Who has which labels.
        partition = extras_of(runs).partitions[0]
        assert drawn(browser, "partition")[0]["z"] == partition.counts

        # All controls are reached by Tab, and show that they have the focus.
        reached = set()
        browser.execute_script("document.querySelector('.skip').focus()")
        for _ in range(60):
            browser.switch_to.active_element.send_keys(Keys.TAB)
            reached.add(browser.execute_script("return document.activeElement.id"))
        wanted = {"theme", "figure", "axis", "view", "logx", "target", "clipping-run"}
        assert wanted <= reached
        titles = "return [...document.querySelectorAll('.modebar-btn')].map(b => b.outerHTML)"
        buttons = " ".join(browser.execute_script(titles))
        assert "Download" in buttons
        assert "Share" not in buttons  # it would send the figures away

        # Nothing wider than a phone, and no errors on the way.
        browser.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False},
        )
        wide = "return document.documentElement.scrollWidth"
        deadline = time.monotonic() + WAIT  # plots follow the window a moment later
        while browser.execute_script(wide) > 360:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert browser.get_log("browser") == []
        printed = base64.b64decode(browser.print_page())
        assert printed.startswith(b"%PDF")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_fifty_runs_of_a_thousand_rounds_are_one_file_that_opens(tmp_path: Path) -> None:
    algorithms = ("celgc", "episode", "fedavg", "scaffold", "naive_parallel_clip")
    for algorithm in algorithms:
        for seed in range(10):
            make_run(tmp_path / "runs" / f"{algorithm}-{seed}", algorithm, seed, rounds=1000)
    page = tmp_path / "r.html"
    write_report(find_runs([tmp_path / "runs"]), page)
    assert page.stat().st_size < 15e6
    with chromium() as browser:
        open_page(browser, page)
        choose(browser, "view", "each")
        assert len(drawn(browser, "curves")) == 50
        assert browser.get_log("browser") == []
