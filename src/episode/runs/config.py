"""An experiment as a config: one tree, read from TOML, with every mistake named in a sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from episode.catalogue import cell_name
from episode.core import ALGORITHMS, CLIPPINGS, CORRECTIONS, Algorithm, Descent
from episode.core.schedule import Schedule
from episode.engines.registry import engine_class
from episode.errors import EpisodeError, unknown
from episode.federation.job import EngineSettings, RecordSettings
from episode.federation.rounds import Plan
from episode.federation.sampling import COHORTS, Cohorts
from episode.results.store import NOT_DECIDING
from episode.runs.config_values import NAMED, read_values, refuse_booleans
from episode.tasks import task_named
from episode.tasks.settings import TaskSettings

T = TypeVar("T")


@dataclass(frozen=True)
class Budget:
    """R rounds of I local steps: R·I iterations for every algorithm."""

    rounds: int
    local_steps: int


class AlgorithmSection(BaseModel):
    """An algorithm by its name or by its pieces, with its options; see `Algorithm.from_dict`.

    It holds what `Algorithm.to_dict` returns, with the name in place of the pieces if there is one.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Check the values, and fill in what was left out."""
        if (name := given.get("name")) is None:
            return Algorithm.from_dict(given).to_dict()
        named = Algorithm.named(name)
        for kind, pieces in (("correction", CORRECTIONS), ("clipping", CLIPPINGS)):
            piece = pieces.build(given[kind], f"algorithm.{kind}") if kind in given else None
            if piece not in (None, getattr(named, kind)):
                raise EpisodeError(
                    f"algorithm.name is {name!r} and another {kind} is given too: "
                    "name the algorithm, or its cell, not both."
                )
        values = Algorithm.from_dict(given).to_dict()
        if name in ALGORITHMS:  # any other may change in its file, so its pieces are stored too
            del values["correction"], values["clipping"]
        return {"name": name, **values}

    def build(self) -> Algorithm:
        return Algorithm.from_dict(self.model_dump(exclude_unset=True))

    @property
    def label(self) -> str:
        """The algorithm's name, or those of its correction and clipping, without their files."""
        if self.name:
            return self.name.rpartition(":")[2]
        return cell_name(self.build().to_dict())


SECTIONS: dict[str, type] = {
    "algorithm": AlgorithmSection,
    "schedule": Schedule,
    "budget": Budget,
    "cohorts": Cohorts,
    "engine": EngineSettings,
    "record": RecordSettings,
}


@dataclass(frozen=True)
class Experiment:
    """Everything that decides a run."""

    task: TaskSettings
    task_name: str
    algorithm: AlgorithmSection
    schedule: Schedule
    budget: Budget
    cohorts: Cohorts
    engine: EngineSettings
    record: RecordSettings
    seed: int = 0

    def plan(self) -> Plan:
        """Return the plan that `federation.rounds` plays; this checks all values."""
        return Plan(
            self.algorithm.build(),
            self.schedule,
            self.budget.rounds,
            self.budget.local_steps,
            self.seed,
            self.cohorts,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values from which `from_dict` builds the same experiment."""
        task = {
            "name": self.task_name,
            **self.task.model_dump(mode="json", exclude_none=True, by_alias=True),
        }
        sections = describe(self.plan(), task, _given(self.record))
        sections["algorithm"] = self.algorithm.model_dump(mode="json", exclude_none=True)
        return {**sections, "engine": _given(self.engine)}

    @property
    def id(self) -> str:
        """Hash of all that decides the result; speed and safety settings do not."""
        return identity_of(self.to_dict())

    @property
    def name(self) -> str:
        """Name of the run's folder: the task, the algorithm and the id."""
        task = self.task_name.rpartition(":")[2]  # MyTask of my_task.py:MyTask
        return f"{task}-{self.algorithm.label}-{self.id}"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """Build an experiment from nested values; what is left out takes the task's defaults.

        Raises:
            EpisodeError: A name, a setting or a value is wrong; the message names it.
        """
        rest = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
        if extra := rest.keys() - SECTIONS.keys() - {"task", "seed"}:
            raise _unknown_section(min(extra))
        task = _table(rest, "task")
        name = task.pop("name", "digits")
        if not isinstance(name, str):
            raise EpisodeError(f"task.name is {name!r}: it must be a name.")
        settings = _parse(task_named(name), "task", task)
        built: dict[str, Any] = {}
        for section, kind in SECTIONS.items():
            suggested, chosen = settings.suggestions().get(section, {}), _table(rest, section)
            given = {**suggested, **chosen}
            if section == "budget":
                given = _budget(suggested, chosen)
            if section == "algorithm" and not given.keys() & {"name", "correction", "clipping"}:
                given["name"] = "episode"
            if kind is Cohorts:
                built[section] = _cohorts(given)
            else:
                built[section] = _parse(kind, section, given)
        engine_class(built["engine"].name)  # an unknown name is an error
        seed = _parse(_Seed, "", {"seed": rest.get("seed", 0)}).seed
        return cls(task=settings, task_name=name, **built, seed=seed)


@dataclass(frozen=True)
class _Seed:
    seed: int


def read_experiment(
    path: Path | None, overrides: Sequence[str] = (), *, found: bool = False
) -> Experiment:
    """Read an experiment from a TOML file or a run folder, with overrides `schedule.eta=0.3`.

    Code that a folder names, or a TOML file that was `found` in one, must be in the overrides too.
    """
    experiment = Experiment.from_dict(read_values(path, overrides, found=found))
    experiment.plan()
    return experiment


def describe(
    plan: Plan, task: Mapping[str, Any], record: Mapping[str, Any], made_by: str | None = None
) -> dict[str, Any]:
    """Return the description of a run as JSON values: what its folder's config.json says.

    Args:
        plan: What is played.
        task: What tells this task from others.
        record: What is recorded.
        made_by: The Python function that starts the run, if it was not started from a config.
    """
    schedule = dataclasses.asdict(plan.schedule)
    return {
        **({"made_by": made_by} if made_by else {}),
        "seed": plan.seed,
        "task": dict(task),
        "algorithm": plan.algorithm.to_dict(),
        "schedule": {**schedule, "milestones": list(schedule["milestones"])},
        "budget": {"rounds": plan.rounds, "local_steps": plan.local_steps},
        "cohorts": plan.cohorts.to_dict(),
        "record": dict(record),
    }


def _given(section: EngineSettings | RecordSettings) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(section).items() if v is not None}


def identity_of(config: Mapping[str, Any]) -> str:
    """Return a short hash of a run's description, without what does not decide its result."""
    values = json.loads(json.dumps(config, default=str))
    for key in NOT_DECIDING:
        section, _, name = key.partition(".")
        values.get(section, {}).pop(name, None)
    text = json.dumps(values, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def to_toml(values: Mapping[str, Any]) -> str:
    """Return TOML for a tree of values, as `read_experiment` reads it."""
    plain = {k: v for k, v in values.items() if not isinstance(v, Mapping)}
    tables = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    lines = [f"{k} = {_toml_value(v)}" for k, v in plain.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", *(f"{k} = {_toml_value(v)}" for k, v in table.items())]
    return "\n".join(lines)


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{k} = {_toml_value(v)}' for k, v in value.items())} }}"
    return json.dumps(value, ensure_ascii=False)  # TOML writes all other values as JSON does


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name, {})
    if isinstance(table, str) and name in NAMED:
        return {"name": table}
    if not isinstance(table, dict):
        raise EpisodeError(f"{name} is {table!r}: it must be a section, [{name}].")
    return table


def _cohorts(given: dict[str, Any]) -> Cohorts:
    kind = given.pop("kind", "full")
    if not isinstance(kind, str) or kind not in COHORTS:
        raise EpisodeError(f"cohorts.kind is {kind!r}: use one of {', '.join(COHORTS)}.")
    if kind == "full" and given:
        raise EpisodeError(f"{min(given)} needs cohorts.kind to be uniform or cyclic.")
    return _parse(COHORTS[kind], "cohorts", given)


def _parse(kind: type[T], section: str, values: Mapping[str, Any]) -> T:
    """Build a section, a dataclass or a pydantic model, from values that may be wrong."""
    names = _names_of(kind)
    if extra := values.keys() - set(names):
        known = [f"{section}.{n}" for n in names] + ["task.name"] * (section == "task")
        raise unknown("setting", f"{section}.{min(extra)}", known)
    try:
        parsed = TypeAdapter(kind).validate_python(dict(values))
    except ValidationError as error:
        problem = error.errors()[0]
        # Of a union's members pydantic names each; the user knows only the setting.
        place = [str(k) for n, k in enumerate(problem["loc"]) if n == 0 or isinstance(k, int)]
        key = ".".join([section, *place]).strip(".")
        if problem["type"] == "missing":
            raise EpisodeError(f"{key} is missing: set it, for example with --set.") from None
        message = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            raise EpisodeError(f"{section}: {message}.") from None
        text = message[:1].lower() + message[1:]
        raise EpisodeError(f"{key} is {problem['input']!r}: {text}.") from None
    refuse_booleans(values, parsed, section)
    return parsed


def _names_of(kind: type) -> list[str]:
    """Return the names of a section's settings."""
    if kind is AlgorithmSection:
        return ["name", *(f.name for k in (Algorithm, Descent) for f in dataclasses.fields(k))]
    if issubclass(kind, BaseModel):
        return [field.alias or name for name, field in kind.model_fields.items()]
    return list(getattr(kind, "__dataclass_fields__", ()))  # Cohorts has none: its rules do


def _budget(suggested: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Derive R from R·I iterations, which may stand for it; what the user gives comes first."""
    if {"rounds", "iterations"} <= given.keys():
        raise EpisodeError(
            "budget.rounds and budget.iterations are both given, but iterations are rounds times "
            "local steps: leave one of them out."
        )
    budget = {**suggested, **given}
    iterations = budget.pop("iterations", None)
    if iterations is None or ("rounds" in budget and "iterations" not in given):
        return budget
    if type(iterations) is not int or iterations < 1:
        raise EpisodeError(
            f"budget.iterations is {iterations!r}: it must be a whole number of 1 or more."
        )
    steps = budget.get("local_steps")
    if not isinstance(steps, int) or steps < 1:
        steps = 1  # which is what the user will hear of
    return {**budget, "rounds": -(-iterations // steps)}


def _unknown_section(given: str) -> EpisodeError:
    """The most frequent mistake is a setting without its section."""
    if given == "sweep":
        return EpisodeError("A [sweep] table is for `episode sweep`: use that, or leave it out.")
    homes = [f"{name}.{given}" for name, kind in SECTIONS.items() if given in _names_of(kind)]
    if homes:
        return EpisodeError(f"There is no section {given!r}: did you mean {homes[0]!r}?")
    return unknown("section", given, [*SECTIONS, "task", "seed"])
