"""Configs, `--set` and command lines: a right result or one sentence, and exit code 0, 1 or 2."""

from __future__ import annotations

import functools
import itertools
import json
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from fuzzing import Case, Kind, Spoken, command, odd_text, own_folder
from hypothesis import strategies as st

from episode.core import ALGORITHMS
from episode.runs.config import Experiment, to_toml

TASKS = ("quadratics", "synthetic", "relaxed_smooth", "digits")
PLANNED = (
    "L0", "L1", "sigma", "kappa", "rho", "delta", "epsilon", "clients", "local_steps", "C",
    "statement", "smoothness", "eta", "gamma",
)  # fmt: skip
TINY = ["--set", "budget.rounds=1", "--set", "budget.local_steps=1"]


def settings_of(task: str) -> dict[str, Any]:
    """Return the settings of a task by dotted key, with their defaults."""
    found: dict[str, Any] = {"budget.iterations": 1, "cohorts.cohort_size": 1, "cohorts.groups": 1}
    for section, values in Experiment.from_dict({"task": task}).to_dict().items():
        inner = values if isinstance(values, dict) else {}
        found |= {f"{section}.{key}": value for key, value in inner.items()}
        found[section] = None if inner else values
    return found


SETTINGS = {task: settings_of(task) for task in TASKS}
KNOWN = sorted({key for own in SETTINGS.values() for key in own})
keys = st.one_of(
    st.sampled_from(KNOWN),
    st.sampled_from(KNOWN),
    st.sampled_from(KNOWN).map(lambda key: key[:-1]),
    st.lists(odd_text, min_size=1, max_size=3).map(".".join),
)
NAMES = (
    *TASKS, *ALGORITHMS, "snli", "silos", "simulation", "flower", "distributed", "batched", "full",
    "uniform", "cyclic", "constant", "cosine", "linear", "resampled", "per_step", "momentum",
)  # fmt: skip
names = st.sampled_from(NAMES)
plain_numbers = st.one_of(
    st.integers(-3, 40),
    st.floats(-2, 2).map(lambda x: round(x, 3)),
    st.sampled_from([10**12, 2**63 - 1, 2**63, -(2**63), 10**20, 10**400, 1e308, 1e-308]),
).map(str)
ODD_TOML = (
    "nan", "inf", "-inf", "-0.0", "1e400", "true", "false", "[]", "{}", "[1]", "[0.5, 2]", "''",
    "{name = 'episode'}", "{name = 'resampled', probe_batches = 2}", "2020-01-01", "0x10", "1_000",
    "12:30:00", "[[[]]]", "{a = {b = {}}}", '"""x"""', "[true]", "[nan]", "cpu", "cuda", "meta",
    "cuda:99", "1e3", "+1", "1.", ".5", "float32", "bfloat16", "[1, 'a']",
)  # fmt: skip
values = st.one_of(
    plain_numbers,
    names,
    names.map(json.dumps),
    st.sampled_from(ODD_TOML),
    odd_text,
)


def usual(value: Any) -> st.SearchStrategy[str]:
    """Return values such as this one, most of which are allowed."""
    if isinstance(value, bool):
        return st.sampled_from(["true", "false"])
    if isinstance(value, int):
        return st.integers(1, 9).map(str)
    if isinstance(value, float):
        return st.floats(0, 1).map(lambda x: str(round(x, 3)))
    return names


@st.composite
def usual_sets(draw: st.DrawFn) -> list[str]:
    """Return settings that suit the task, most of them allowed, and perhaps one that is not."""
    task = draw(st.sampled_from(TASKS))
    given = [f"task={task}"]
    known = draw(st.lists(st.sampled_from(sorted(SETTINGS[task])), max_size=3))
    given += [f"{key}={draw(usual(SETTINGS[task][key]))}" for key in known]
    given += draw(st.lists(st.builds("{}={}".format, keys, values), max_size=1))
    return [a for text in given for a in ("--set", text)]


a_set = st.builds(lambda key, value: ["--set", f"{key}={value}"], keys, values)
sets = st.one_of(
    st.lists(a_set, max_size=4).map(lambda many: [a for one in many for a in one]),
    odd_text.map(lambda text: ["--set", text]),
    usual_sets(),
    usual_sets(),
)
task_sets = st.sampled_from(TASKS).map(lambda task: ["--set", f"task={task}"])


def options(**kinds: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    """Return some of these options, with values."""
    chosen = st.lists(st.sampled_from(sorted(kinds)), max_size=3, unique=True)
    given = chosen.flatmap(lambda some: st.tuples(*(option(name, kinds[name]) for name in some)))
    return given.map(lambda parts: [a for part in parts for a in part])


def option(name: str, value: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return value.map(lambda text: [f"--{name.replace('_', '-')}", text])


def flags(*some: str) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(some), max_size=2, unique=True)


def line(*parts: str | st.SearchStrategy[list[str]]) -> st.SearchStrategy[list[str]]:
    """Return a command line of fixed words and random parts."""
    made = [st.just([part]) if isinstance(part, str) else part for part in parts]
    return st.tuples(*made).map(lambda all_: [a for part in all_ for a in part])


config = st.sampled_from([[], [], ["config.toml"], ["done"], ["nowhere"], ["."], [""]])
folders = st.lists(
    st.sampled_from(["done", ".", "done/", "nowhere", "config.toml", "", "done/config.json"])
    | odd_text.filter(lambda name: not name.startswith(("/", "..", "-"))),
    max_size=3,
)
tiny = st.sampled_from(["0", "1", "2", "-1", "nan", "x", "", "1.5"])
words = names | odd_text | plain_numbers
constants = st.one_of(st.floats().map(str), plain_numbers, values)
varied = st.builds("{}={},{}".format, keys, values, values) | values.map("seed={}".format)
outputs = st.sampled_from(["r.html", "", ".", "nowhere/r.html", "done"])
dry = st.one_of(
    line("run", "--dry-run", usual_sets()),
    line("run", config, "--dry-run", task_sets, sets),
    line("run", config, sets, "--dry-run", options(engine=words, task=words, data=words)),
    line("run", config, sets, options(model=words, folder=words), flags("--json"), "--dry-run"),
    line("sweep", config, "--dry-run", sets, option("over", varied), flags("--json")),
    line(
        "reproduce", st.lists(words, max_size=2), "--dry-run", flags("--json", "--tune", "--all"),
        options(scale=words, data=words, seeds=tiny),
    ),
)  # fmt: skip
read = st.one_of(
    line("compare", folders, flags("--json", "--per-silo"), options(metric=words)),
    line("report", folders, options(title=odd_text, output=outputs)),
    line("watch", folders, "--once", options(every=tiny)),
    line("run", "done", "--resume", sets, flags("--json", "--track")),
    line("list", st.lists(words, max_size=2), flags("--json")),
    line("data", st.sampled_from([["where"], ["check"], ["fetch", "nothing"]]), flags("x", "-q")),
)
on_quadratics = st.just(["-q", "--set", "task=quadratics"])
short = st.just(["--steps=1", "--points=1", "--batches=1", "--rehearsal=1"])
compute = st.one_of(
    line("run", config, on_quadratics, sets, st.just(TINY)),
    line("run", "-q", task_sets, sets, st.just(TINY), flags("--monitor", "--json")),
    line("plan", options(**dict.fromkeys(PLANNED, constants)), flags("--json")),
    line("partition", st.lists(st.sampled_from(TASKS) | odd_text, max_size=2), sets),
    line(
        "tune", on_quadratics, sets, st.just(TINY), option("search", varied),
        options(sampler=words, pruner=words, metric=words, trials=tiny),
    ),
    line(
        "diagnose", st.sampled_from([["quadratics"], ["synthetic"], ["done"], ["nowhere"]]), "-q",
        sets, short, options(steps=tiny, points=tiny, batches=tiny, rehearsal=tiny),
    ),
    line("flower", "app", config, sets, options(folder=st.sampled_from(["made", "", ".", "done"]))),
)  # fmt: skip
nonsense = st.lists(
    odd_text | st.sampled_from(["run", "--set", "-q", "-h", "--version"]), max_size=4
)
tables = st.dictionaries(keys, values, max_size=4).map(
    lambda entries: "\n".join(f"{key} = {value}" for key, value in entries.items())
)


@st.composite
def torn_config(draw: st.DrawFn) -> str:
    """Return a whole config, in which a few characters are wrong."""
    task = draw(st.sampled_from(TASKS))
    text = to_toml(Experiment.from_dict({"task": task}).to_dict())
    for _ in range(draw(st.integers(0, 3))):
        place, length = draw(st.integers(0, len(text))), draw(st.integers(0, 6))
        text = text[:place] + draw(values) + text[place + length :]
    return text


cases = st.fixed_dictionaries(
    {
        "arguments": st.one_of(dry, dry, read, compute, nonsense),
        "config": st.one_of(tables, torn_config(), odd_text),
    }
)


@functools.cache
def done() -> Path:
    """Return the folder of a small run that has finished."""
    folder = Path(tempfile.mkdtemp(prefix="episode-fuzz-"))
    made = command("run", "-q", "--set", "task=quadratics", *TINY, "--folder", f"{folder}/done")
    assert made.code == 0, made
    return folder


def check(case: Case) -> str:
    """Run the command in a folder with a config and a run."""
    with own_folder() as here:
        shutil.copytree(done() / "done", here / "done")
        (here / "config.toml").write_bytes(case["config"].encode(errors="surrogateescape"))
        spoken = command(*case["arguments"])
        if (
            case["arguments"][:1] == ["run"]
            and "--dry-run" in case["arguments"]
            and not spoken.code
        ):
            check_printed(case["arguments"], spoken)
    return f"exit code {spoken.code}"


def check_printed(arguments: list[str], spoken: Spoken) -> None:
    """Check that a printed config is what was asked for, and is read as it was meant."""
    if spoken.out.lstrip().startswith(("Usage", "{")):
        return
    Path("printed.toml").write_text(spoken.out)
    again = command("run", "--dry-run", "printed.toml")
    assert again.out == spoken.out, (spoken, again)
    printed = tomllib.loads(spoken.out)
    asked = dict(
        text.split("=", 1) for flag, text in itertools.pairwise(arguments) if flag == "--set"
    )
    for key in asked:
        section, _, name = key.strip().partition(".")
        assert section in printed, (key, printed)
        inside: Any = printed[section]
        if name and "." not in name and name != "iterations":
            assert name in inside, f"{key} was accepted and is not in the config"


KIND = Kind("commands", cases, check)
