"""The report in a browser: all controls and numbers, keyboard, phone and print."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from browser import chromium
from made_runs import PLACES, UNCLIPPED, make_run, some_runs, write_partition, write_silos

from episode.results.per_client import last_values, read_lines, read_names
from episode.results.report import write_report
from episode.results.store import StoredRun, find_runs

WAIT = 30.0


def open_page(browser: Any, page: Path) -> None:
    browser.get(page.as_uri())
    deadline = time.monotonic() + WAIT
    while browser.execute_script("return document.documentElement.dataset.ready") != "yes":
        assert time.monotonic() < deadline, browser.get_log("browser")
        time.sleep(0.05)
    browser.execute_script("drawAll()")


def choose(browser: Any, control: str, value: str) -> None:
    """Picks a value of a select, by its id or a selector."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    selector = control if control.startswith("#") else f"#{control}"
    Select(browser.find_element(By.CSS_SELECTOR, selector)).select_by_value(value)


def click(browser: Any, selector: str) -> None:
    """As a person with a keyboard would."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.find_element(By.CSS_SELECTOR, selector).send_keys(Keys.SPACE)


def target_rows(browser: Any) -> list[list[str]]:
    """The table of costs: unrounded where a cell has a number."""
    script = "return [...document.querySelectorAll('#target-rows tr')].map(r => [...r.cells]"
    return browser.execute_script(script + ".map(c => c.dataset.value ?? c.textContent))")


def drawn(browser: Any, plot: str) -> list[dict[str, Any]]:
    script = "return document.getElementById(arguments[0]).data.map(t => ({x: t.x, y: t.y,"
    return browser.execute_script(script + " name: t.name, meta: t.meta, z: t.z}))", plot)


AXES: dict[str, Callable[[dict[str, Any]], float]] = {
    "round": lambda r: r["round"] + 1, "exchanges": lambda r: r["exchanges"],
    "bytes": lambda r: (r["bytes_up"] + r["bytes_down"]) / 1e6,
    "gradients": lambda r: r["gradients"], "seconds": lambda r: r["seconds"],
}  # fmt: skip
METRICS = ("test_accuracy", "train_loss", "test_loss", "train_accuracy")


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # selenium leaves a pipe to collect
def test_in_a_browser_every_control_changes_what_it_should(tmp_path: Path) -> None:
    runs = find_runs([some_runs(tmp_path / "runs")])
    page = tmp_path / "r.html"
    partitions = {r.config["seed"]: write_partition(r.folder) for r in runs}
    for run in runs:
        if run.label in ("celgc", "episode"):  # of the others there are no records
            write_silos(run.folder, silos=5, share=0.6)
    write_report(runs, page)
    by_name = {r.folder.name: r for r in runs}
    with chromium() as browser:
        open_page(browser, page)
        listed = "return [...document.querySelectorAll('select, input')].map(c => c.id || c.value)"
        controls = set(browser.execute_script(listed))
        assert controls == {
            "theme", "metric", "axis", "view", "logx", "logy", "celgc", "episode", "fedavg",
            "scaffold", "target-metric", "target", "clipping-run", "partition-choice", "",
            "silo-metric", "silo-shown", "silo-baseline", "silo",
        }, "a control is new: drive it here"  # fmt: skip
        check_what_is_shown_first(browser)
        check_curves(browser, by_name)
        check_scales_and_theme(browser)
        check_algorithms_and_filters(browser, by_name)
        check_configurations(browser)
        check_targets(browser, by_name)
        check_clipping(browser, runs)
        check_partitions(browser, [partitions[seed] for seed in range(3)])
        check_silos(browser, runs)
        check_curve_of_a_silo(browser, runs)
        check_keyboard(browser)
        check_phone_and_print(browser)
        assert browser.get_log("browser") == []


def check_what_is_shown_first(browser: Any) -> None:
    """Runs of about equal length against rounds; each line of the drift has a name; whole ticks."""
    assert browser.execute_script("return byId('axis').value") == "round"
    script = "return [...document.querySelectorAll('#drift-lines span')].map(s => s.textContent)"
    assert len(browser.execute_script(script)) == browser.execute_script(
        "return shownGroups().length"
    )
    assert browser.execute_script("return byId('drift').layout.yaxis.tickformat") == "~g"
    script = "report.runs[0].rounds *= 8; suggestAxis(); return byId('axis').value"
    assert browser.execute_script(script) == "gradients"
    browser.execute_script("report.runs[0].rounds /= 8; suggestAxis()")


def check_curves(browser: Any, by_name: dict[str, StoredRun]) -> None:
    """Each axis and metric, to the digit; drift; means over seeds."""
    choose(browser, "view", "each")
    for axis, read in AXES.items():
        choose(browser, "axis", axis)
        for metric in METRICS:
            choose(browser, "metric", metric)
            curves = {t["meta"]: t for t in drawn(browser, "curves")}
            for name, run in by_name.items():
                rounds = [r for r in run.rounds if "metrics" in r]
                assert curves[name]["x"] == [read(r) for r in rounds]
                assert curves[name]["y"] == [r["metrics"][metric] for r in rounds]
        drift = {t["meta"]: t for t in drawn(browser, "drift")}
        for name, run in by_name.items():
            assert drift[name]["x"] == [read(r) for r in run.rounds]
            assert drift[name]["y"] == [r["drift"] for r in run.rounds]
    choose(browser, "metric", "loss")
    curves = {t["meta"]: t for t in drawn(browser, "curves")}
    losses = [r["loss"] for r in by_name["fedavg-0"].rounds]
    assert curves["fedavg-0"]["y"] == [*losses[:-1], None]  # the last is not finite
    (mark,) = [t for t in drawn(browser, "curves") if t["meta"] == "diverged"]
    assert mark["y"] == [losses[-2]]
    note = "return [document.getElementById('curves-note').hidden, "
    note += "document.getElementById('curves').layout.yaxis.range[1]]"
    hidden, top = browser.execute_script(note)  # 1e9 of the diverged run does not press others flat
    assert not hidden
    assert top < 3
    click(browser, "#logy")
    hidden, top = browser.execute_script(note)
    assert hidden
    assert top > 9
    click(browser, "#logy")

    choose(browser, "view", "mean")
    choose(browser, "metric", "test_accuracy")
    seeds = [
        [r["metrics"]["test_accuracy"] for r in by_name[f"episode-{s}"].rounds] for s in range(3)
    ]
    shown = drawn(browser, "curves")
    place = next(i for i, t in enumerate(shown) if t["name"] == "episode, local_steps 8, mean of 3")
    columns = list(zip(*seeds, strict=True))
    assert shown[place]["y"] == pytest.approx([sum(c) / 3 for c in columns], rel=1e-14)
    band = shown[place - 1]
    assert band["meta"] == "range"
    assert band["y"] == [max(c) for c in columns] + [min(c) for c in columns][::-1]


def check_scales_and_theme(browser: Any) -> None:
    for letter in "xy":
        kind = f"return document.getElementById('curves').layout.{letter}axis.type"
        assert browser.execute_script(kind) != "log"
        click(browser, f"#log{letter}")
        assert browser.execute_script(kind) == "log"
        click(browser, f"#log{letter}")
        assert browser.execute_script(kind) != "log"
    background = "return getComputedStyle(document.body).backgroundColor"
    ink = "return document.getElementById('curves').layout.font.color"
    choose(browser, "theme", "dark")
    assert browser.execute_script(background) == "rgb(22, 24, 28)"
    assert browser.execute_script(ink) == "#ececec"
    choose(browser, "theme", "light")
    assert browser.execute_script(background) == "rgb(255, 255, 255)"
    assert browser.execute_script(ink) == "#1b1b1b"


def check_algorithms_and_filters(browser: Any, by_name: dict[str, StoredRun]) -> None:
    """What is switched off is neither drawn nor listed."""
    choose(browser, "view", "each")
    for label in ("celgc", "episode", "fedavg", "scaffold"):
        click(browser, f"#algorithms input[value={label}]")
        shown = {t["meta"] for t in drawn(browser, "curves")}
        assert shown >= {n for n in by_name if not n.startswith(label)} - {"diverged"}
        assert not {n for n in shown if n.startswith(label)}
        assert not {t["meta"] for t in drawn(browser, "drift") if t["meta"].startswith(label)}
        assert not any(row[0].startswith(label) for row in target_rows(browser))
        click(browser, f"#algorithms input[value={label}]")
    steps = '#filters select[data-key="budget.local_steps"]'
    for value, wanted in (("4", {"episode-4"}), ("8", set(by_name) - {"episode-4"})):
        choose(browser, steps, value)
        assert {t["meta"] for t in drawn(browser, "curves")} - {"diverged"} == wanted
        assert len(target_rows(browser)) == (1 if value == "4" else 4)
    choose(browser, steps, "")
    assert len(target_rows(browser)) == 5


def check_configurations(browser: Any) -> None:
    """Which line is which, as long as an algorithm has several configurations."""
    listed = "return document.getElementById('configurations').innerText.trim().split('\\n')"
    names = browser.execute_script(listed)
    assert {"episode, local_steps 4", "episode, local_steps 8"} <= {n.strip() for n in names}
    steps = '#filters select[data-key="budget.local_steps"]'
    choose(browser, steps, "8")
    hidden = "return document.getElementById('configurations').hidden"
    assert browser.execute_script(hidden)
    choose(browser, steps, "")
    assert not browser.execute_script(hidden)


def check_targets(browser: Any, by_name: dict[str, StoredRun]) -> None:
    """Cost to a target, against our own search, for every cost and both senses."""
    from selenium.webdriver.common.by import By

    senses = {"test_accuracy": ("at least", 0.6), "train_loss": ("at most", 1.0)}
    for metric, (sense, target) in senses.items():
        choose(browser, "target-metric", metric)
        assert browser.find_element(By.ID, "target-sense").text == sense
        suggested = browser.find_element(By.ID, "target").get_attribute("value")
        assert suggested, "a target is suggested"
        field = browser.find_element(By.ID, "target")
        field.clear()
        field.send_keys(str(target))
        row = next(r for r in target_rows(browser) if r[0] == "episode, local_steps 8")
        firsts = []
        for seed in range(3):
            for r in by_name[f"episode-{seed}"].rounds:
                value = r["metrics"][metric]
                if value >= target if sense == "at least" else value <= target:
                    firsts.append(r)
                    break
        assert row[1] == "3 of 3"
        for cell, read in zip(row[2:], AXES.values(), strict=True):
            assert float(cell) == pytest.approx(sum(map(read, firsts)) / 3, rel=1e-14)
    field.clear()
    field.send_keys("-5")
    assert {tuple(r[1:]) for r in target_rows(browser)} >= {("0 of 3", *["–"] * 5)}


def check_clipping(browser: Any, runs: Sequence[StoredRun]) -> None:
    """‖G_r‖ (or the largest ‖g‖) against γ/η, for every run and axis."""
    from selenium.webdriver.common.by import By

    first = browser.execute_script("return document.getElementById('clipping-run').value")
    assert runs[int(first)].label == "episode", "of those that clip a round or not, the first"
    for place, run in enumerate(runs):
        choose(browser, "clipping-run", str(place))
        norm = "largest_norm" if run.rounds[0]["global_norm"] is None else "global_norm"
        clipping = {t["meta"]: t for t in drawn(browser, "clipping")}
        assert clipping[norm]["y"] == [r[norm] for r in run.rounds]
        assert clipping["threshold"]["y"] == [r["threshold"] for r in run.rounds]
        marked = [r[norm] if r["clipped"] else None for r in run.rounds]
        assert clipping["clipped"]["y"] == marked
        words = browser.find_element(By.ID, "clipping-words").text
        if run.label == "episode":
            count = sum(r["clipped"] for r in run.rounds)
            assert words.startswith(f"{count} of {len(run.rounds)} rounds")
        elif run.label in UNCLIPPED:
            assert words == f"{run.label} does not clip."
        else:
            steps = [r["clipped_steps"] for r in run.rounds]
            assert f"{100 * sum(steps) / len(steps):.1f}%" in words
    for axis, read in AXES.items():
        choose(browser, "axis", axis)
        (first, *_) = drawn(browser, "clipping")
        assert first["x"] == [read(r) for r in runs[-1].rounds]


def check_partitions(browser: Any, partitions: Sequence[dict[str, Any]]) -> None:
    """Who has which labels, for every partition."""
    for place, partition in enumerate(partitions):
        choose(browser, "partition-choice", str(place))
        (heat,) = drawn(browser, "partition")
        kind = "return document.getElementById('partition')._fullData[0].type"
        assert browser.execute_script(kind) == "heatmap"
        assert heat["z"] == partition["counts"]
        assert heat["x"] == partition["labels"]
    assert partitions[0]["counts"] != partitions[1]["counts"]


def silo_values(runs: Sequence[StoredRun], label: str, steps: int, metric: str) -> dict[str, float]:
    """The last value of each silo, the mean over seeds, by our own reading."""
    chosen = [r for r in runs if r.label == label and r.config["budget"]["local_steps"] == steps]
    last = [last_values(read_lines(r.folder), metric) for r in chosen]
    names = read_names(chosen[0].folder)
    return {names[k]: sum(own[k] for own in last) / len(last) for k in last[0]}


def silo_rows(browser: Any) -> dict[str, list[str]]:
    script = "return [...document.querySelectorAll('#silo-rows tr')].map(r => [...r.cells]"
    rows = browser.execute_script(script + ".map(c => c.textContent))")
    return {row[0]: row[1:] for row in rows}


def check_silos(browser: Any, runs: Sequence[StoredRun]) -> None:
    """Who gains and who loses, for every metric, configuration and baseline."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.ui import Select

    def options(control: str) -> dict[str, str]:
        found = Select(browser.find_element(By.ID, control)).options
        return {o.text: o.get_attribute("value") for o in found}

    groups = {"celgc, local_steps 8": ("celgc", 8), "episode, local_steps 8": ("episode", 8),
              "episode, local_steps 4": ("episode", 4)}  # fmt: skip
    assert options("silo-shown").keys() == options("silo-baseline").keys() == groups.keys()
    metrics = list(options("silo-metric").values())
    assert metrics[:3] == ["holdout_accuracy", "holdout_loss", "loss"]
    for metric in metrics:
        choose(browser, "silo-metric", metric)
        sign = 1 if "accuracy" in metric else -1
        for shown, baseline in itertools.product(groups, groups):
            choose(browser, "silo-shown", options("silo-shown")[shown])
            choose(browser, "silo-baseline", options("silo-baseline")[baseline])
            ours, theirs = (silo_values(runs, *groups[g], metric) for g in (shown, baseline))
            (bars,) = drawn(browser, "silo-gains")
            if shown == baseline:
                assert sorted(bars["x"]) == pytest.approx(sorted(ours.values()))
                continue
            gains = {s: sign * (ours[s] - theirs[s]) for s in ours}
            assert bars["x"] == pytest.approx(sorted(gains.values())), "the worst first"
            row = silo_rows(browser)[shown]
            assert row[0] == f"{sum(ours.values()) / 5:.3f}"
            assert ours[row[2]] == sign * min(sign * v for v in ours.values())
            assert row[4] == str(sum(g > 0 for g in gains.values()))
            assert row[5] == str(sum(g < 0 for g in gains.values()))
            words = browser.find_element(By.ID, "silo-words").text
            assert words.startswith(f"{row[4]} of 5 silos gain with {shown}, {row[5]} lose")
    rows = silo_rows(browser)
    assert rows["fedavg, local_steps 8"][2] == "not recorded"
    assert any(name.endswith("(baseline)") for name in rows)


def check_curve_of_a_silo(browser: Any, runs: Sequence[StoredRun]) -> None:
    """A click on a bar, or a choice, shows the curves of that silo alone."""
    from selenium.webdriver.common.by import By

    choose(browser, "silo-metric", "holdout_accuracy")
    choose(browser, "axis", "round")
    for silo in (3, 0):
        choose(browser, "silo", str(silo))
        curves = {t["meta"]: t for t in drawn(browser, "silo-curves")}
        assert len(curves) == 3
        (run,) = [r for r in runs if r.folder.name == "episode-4"]
        lines = [line for line in read_lines(run.folder) if "metrics" in line]
        values = [line["metrics"]["holdout_accuracy"][silo] for line in lines]
        assert curves["episode, local_steps 4"]["y"] == values
        assert curves["episode, local_steps 4"]["x"] == [line["round"] + 1 for line in lines]
    chosen = "return document.getElementById('silo').value"
    data = "return document.getElementById('silo-gains').data[0].customdata"
    bars = browser.find_elements(By.CSS_SELECTOR, "#silo-gains .bars .point")
    order = browser.execute_script(data)
    assert (len(bars), sorted(order)) == (5, list(range(5)))
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", bars[2])
    middle = "const r = arguments[0].getBoundingClientRect(); "
    middle += "return [r.x + r.width / 2, r.y + r.height / 2]"
    box = browser.execute_script(middle, bars[2])
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        browser.execute_cdp_cmd(
            "Input.dispatchMouseEvent",
            {"type": kind, "x": box[0], "y": box[1], "button": "left", "clickCount": 1},
        )
    deadline = time.monotonic() + WAIT
    while browser.execute_script(chosen) != str(order[2]):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def check_keyboard(browser: Any) -> None:
    """All controls are reached by Tab, and the plots have no button that sends metrics away."""
    from selenium.webdriver.common.keys import Keys

    reached = set()
    browser.execute_script("document.querySelector('.skip').focus()")
    for _ in range(90):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        script = "const e = document.activeElement; return e.id || e.value || e.dataset.key || ''"
        reached.add(browser.execute_script(script))
    wanted = {"theme", "metric", "axis", "view", "logx", "logy", "celgc", "scaffold", "target",
              "target-metric", "clipping-run", "partition-choice", "silo-metric", "silo-shown",
              "silo-baseline", "silo"}  # fmt: skip
    assert wanted <= reached
    titles = "return [...document.querySelectorAll('.modebar-btn')].map(b => b.outerHTML)"
    buttons = " ".join(browser.execute_script(titles))
    assert "Download" in buttons
    assert "Share" not in buttons


def check_phone_and_print(browser: Any) -> None:
    """Nothing is wider than a phone, and it prints."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False},
    )
    wide = "return document.documentElement.scrollWidth"
    deadline = time.monotonic() + WAIT  # plots follow the window a moment later
    while browser.execute_script(wide) > 360:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    for control in ("target", "clipping-run"):  # what a table and a plot are about
        assert browser.find_element("id", control).is_displayed()
    hidden = "return [...document.querySelectorAll('details')].filter(d => !d.open).length"
    assert browser.execute_script(hidden) == 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    printed = base64.b64decode(browser.print_page())
    assert printed.startswith(b"%PDF")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_hundred_silos_stand_side_by_side_and_one_configuration_has_nobody_to_gain_on(
    tmp_path: Path,
) -> None:
    from selenium.webdriver.common.by import By

    write_silos(make_run(tmp_path / "runs" / "a"), 100, share=0.1)
    write_report(find_runs([tmp_path / "runs"]), tmp_path / "one.html")
    write_silos(make_run(tmp_path / "runs" / "b", "celgc"), 100, share=0.1)
    write_report(find_runs([tmp_path / "runs"]), tmp_path / "two.html")
    with chromium(width=360) as browser:
        open_page(browser, tmp_path / "one.html")
        words = browser.find_element(By.ID, "silo-words").text
        assert words.startswith("Only one configuration has records of each silo")
        open_page(browser, tmp_path / "two.html")
        (bars,) = drawn(browser, "silo-gains")
        assert (bars["x"], len(bars["y"])) == (list(range(100)), 100)
        assert bars["y"] == sorted(bars["y"])
        chosen = "return document.getElementById('silo-gains').layout.annotations[0].text"
        for silo in ("Ghent 3", "Cork 12"):
            choose(
                browser, "silo", str(8 * int(silo.split()[1]) - 8 + PLACES.index(silo.split()[0]))
            )
            assert browser.execute_script(chosen) == silo
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 500
        assert browser.get_log("browser") == []


INTRUSIONS = """
const [done] = [...arguments].slice(-1), refused = [];
addEventListener("securitypolicyviolation", (e) => refused.push(e.effectiveDirective));
const add = (name, values) => document.body.append(
  Object.assign(document.createElement(name), values));
add("script", { textContent: "window.intruded = 'inline'" });
add("script", { src: "data:text/javascript,window.intruded = 'data'" });
add("div", { innerHTML: "<b id='bait' onclick=\\"window.intruded = 'handler'\\">x</b>" });
document.getElementById("bait").click();
add("img", { src: "http://localhost:9/pixel.png" });
add("iframe", { src: "data:text/html,x" });
add("link", { rel: "stylesheet", href: "http://localhost:9/style.css" });
fetch("http://localhost:9/").catch(() => 0);
const report = () => [window.intruded ?? "nothing", [...new Set(refused)].sort()];
const deadline = Date.now() + 30000;
setInterval(() => report()[1].length >= 6 || Date.now() > deadline ? done(report()) : 0, 50);
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_in_a_browser_the_page_may_use_nothing_but_itself(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "<img src=x onerror='window.intruded=1'>")
    write_partition(run)
    write_report(find_runs([tmp_path / "runs"]), tmp_path / "r.html")
    with chromium() as browser:
        open_page(browser, tmp_path / "r.html")
        picture = "Plotly.toImage('curves', {format: 'png'}).then(arguments[0], arguments[0])"
        assert browser.execute_async_script(picture).startswith("data:image/png;base64,")
        assert browser.get_log("browser") == []
        intruded, refused = browser.execute_async_script(INTRUSIONS)
        assert intruded == "nothing"
        assert refused == [
            "connect-src", "frame-src", "img-src", "script-src-attr", "script-src-elem",
            "style-src-elem",
        ]  # fmt: skip


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
