"""An experiment as a config: one tree, read from TOML, with every mistake named in a sentence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, ValidationError

from episode.core.algorithm import Algorithm
from episode.core.schedule import Schedule
from episode.errors import EpisodeError, unknown
from episode.runs.catalogue import ENGINES
from episode.runs.config_values import NAMED, apply_override, read_values
from episode.federation.rounds import Plan
from episode.federation.sampling import Cohorts, Cyclic, Full, Uniform
from episode.tasks import task_named
from episode.tasks.settings import TaskSettings

SAFETY = ("name", "workers", "timeout_seconds", "min_replies", "retries")
"""Settings of the engine that decide how fast and how safe a run is, not what it finds."""

T = TypeVar("T", bound=BaseModel)


class Section(BaseModel):
    """A part of the tree: frozen, and closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class AlgorithmSection(Section):
    """A named algorithm, or a cell of the grid by its correction and clipping, and its options."""

    name: str | None = None
    correction: str | None = None
    clipping: str | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    momentum_of: str = "corrected"
    probe_batches: int = 1
    reuse_probe: bool = False
    weighting: str = "uniform"

    def build(self) -> Algorithm:
        options = self.model_dump(exclude={"name", "correction", "clipping"})
        if self.name is None:
            cell = {"correction": self.correction, "clipping": self.clipping}
            return Algorithm.from_dict({**cell, **options})
        if self.correction or self.clipping:
            raise EpisodeError(
                f"algorithm.name is {self.name!r} and a correction or clipping is given too: "
                "name the algorithm, or its cell, not both."
            )
        return Algorithm.named(self.name, **options)

    @property
    def label(self) -> str:
        """The name, or the cell's coordinates."""
        return self.name or f"{self.correction}-{self.clipping}"


class ScheduleSection(Section):
    """η and γ and how they change; see `core.schedule.Schedule`."""

    eta: float
    gamma: float
    kind: str = "constant"
    milestones: tuple[float, ...] = ()
    factor: float = 0.5
    final: float = 0.0
    warmup: float = 0.0
    gamma_follows_eta: bool = True

    def build(self) -> Schedule:
        return Schedule(**self.model_dump())


class BudgetSection(Section):
    """R rounds of I local steps: R·I iterations for every algorithm."""

    rounds: int
    local_steps: int


class CohortSection(Section):
    """Who takes part; see `federation.sampling`."""

    kind: Literal["full", "uniform", "cyclic"] = "full"
    cohort_size: int | None = None
    groups: int | None = None
    period: int = 1

    def build(self) -> Cohorts:
        if self.kind == "full":
            if self.cohort_size or self.groups:
                raise EpisodeError("cohort_size and groups need cohorts.kind uniform or cyclic.")
            return Full()
        if self.kind == "uniform":
            if self.cohort_size is None:
                raise EpisodeError("Uniform cohorts need a cohort_size: set cohorts.cohort_size.")
            return Uniform(self.cohort_size)
        if self.groups is None:
            raise EpisodeError("Cyclic cohorts need a number of groups: set cohorts.groups.")
        return Cyclic(self.groups, self.period, self.cohort_size)


class EngineSection(Section):
    """Where clients run. But for the device, it changes the speed and the order of sums only.

    Under torchrun every run is `distributed`, whatever its config says.
    """

    name: str = "simulation"
    workers: int | None = Field(default=None, ge=1)
    """Threads; of each process, where there are several."""
    device: str = "cpu"
    """cuda gives each process of a cluster the GPU of its local rank."""
    timeout_seconds: float = Field(default=600.0, gt=0)
    """A process of a cluster, or a site in one phase, that says nothing for so long is lost."""
    min_replies: int | None = Field(default=None, ge=1)
    """Flower: sites that must take part in a round, which is else tried again `retries` times."""
    retries: int = Field(default=2, ge=0)
    max_norm: float | None = Field(default=None, gt=0)
    """Flower: a site's gradient of a larger norm is rejected."""


class RecordSection(Section):
    """What is written down, and how often."""

    evaluate_every: int = Field(default=1, ge=0)
    """Rounds of I local steps between evaluations; 0 evaluates at the end only."""
    checkpoint_seconds: float = Field(default=30.0, ge=0)
    """Seconds of work that a crash may cost; 0 writes a checkpoint after every round."""


class Experiment(Section):
    """Everything that decides a run."""

    task: SerializeAsAny[TaskSettings]
    task_name: str
    algorithm: AlgorithmSection
    schedule: ScheduleSection
    budget: BudgetSection
    cohorts: CohortSection
    engine: EngineSection
    record: RecordSection
    seed: int = 0

    def plan(self) -> Plan:
        """What `federation.rounds` plays; checks all values on the way."""
        return Plan(
            self.algorithm.build(),
            self.schedule.build(),
            self.budget.rounds,
            self.budget.local_steps,
            self.seed,
            self.cohorts.build(),
        )

    def to_dict(self) -> dict[str, Any]:
        """JSON values from which `from_dict` builds the same experiment."""
        values = self.model_dump(mode="json", exclude_none=True)
        values["task"] = {"name": values.pop("task_name"), **values["task"]}
        return {"seed": values.pop("seed"), **values}

    @property
    def id(self) -> str:
        """A hash of all that decides the result; speed and safety settings do not."""
        values = self.to_dict()
        for key in SAFETY:
            values["engine"].pop(key, None)
        values["record"].pop("checkpoint_seconds", None)
        return identity_of(values)

    @property
    def name(self) -> str:
        """A folder's name: what it is, and its id."""
        task = self.task_name.rpartition(":")[2]  # of my_task.py:MyTask
        return f"{task}-{self.algorithm.label}-{self.id}"

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """An experiment from nested values; what is left out takes the task's defaults."""
        rest = {k: dict(v) if isinstance(v, Mapping) else v for k, v in values.items()}
        sections: dict[str, type[Section]] = {
            "algorithm": AlgorithmSection,
            "schedule": ScheduleSection,
            "budget": BudgetSection,
            "cohorts": CohortSection,
            "engine": EngineSection,
            "record": RecordSection,
        }
        if extra := rest.keys() - sections.keys() - {"task", "seed"}:
            raise _unknown_section(min(extra), sections)
        task = _table(rest, "task")
        name = task.pop("name", "digits")
        settings = _parse(task_named(str(name)), "task", task)
        built: dict[str, Any] = {"task": settings, "task_name": name}
        suggestions = settings.suggestions()
        for section, model in sections.items():
            given = {**suggestions.get(section, {}), **_table(rest, section)}
            if section == "budget":
                _rounds_from_iterations(given)
            if section == "algorithm" and not given.keys() & {"name", "correction", "clipping"}:
                given["name"] = "episode"
            built[section] = _parse(model, section, given)
        if built["engine"].name not in ENGINES:
            raise unknown("engine", built["engine"].name, ENGINES)
        return _parse(cls, "", {**built, "seed": rest.get("seed", 0)})


def read_experiment(path: Path | None, overrides: Sequence[str] = ()) -> Experiment:
    """An experiment from a TOML file (or a run's folder) and overrides like `schedule.eta=0.3`."""
    values = read_values(path) if path else {}
    for override in overrides:
        apply_override(values, override)
    experiment = Experiment.from_dict(values)
    experiment.plan()
    return experiment


def to_toml(values: Mapping[str, Any]) -> str:
    """TOML for a tree of one level of tables: what `read_experiment` reads."""
    plain = {k: v for k, v in values.items() if not isinstance(v, Mapping)}
    tables = {k: v for k, v in values.items() if isinstance(v, Mapping)}
    # JSON's strings, numbers, booleans and arrays are TOML's too.
    lines = [f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in plain.items()]
    for name, table in tables.items():
        lines += ["", f"[{name}]", to_toml(table)]
    return "\n".join(lines)


def identity_of(values: Any) -> str:
    """A short hash of JSON values."""
    text = json.dumps(values, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _table(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = values.get(name, {})
    if isinstance(table, str) and name in NAMED:
        return {"name": table}
    if not isinstance(table, dict):
        raise EpisodeError(f"{name} is {table!r}: it must be a section, [{name}].")
    return table


def _parse(model: type[T], section: str, values: Mapping[str, Any]) -> T:
    try:
        return model(**values)
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join([section, *map(str, problem["loc"])]).strip(".")
        if problem["type"] == "extra_forbidden":
            names = [f"{section}.{f.alias or n}" for n, f in model.model_fields.items()]
            if section == "task":
                names.append("task.name")
            raise unknown("setting", key, names) from None
        if problem["type"] == "missing":
            raise EpisodeError(f"{key} is missing: set it, for example with --set.") from None
        message = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            raise EpisodeError(f"{section}: {message}.") from None
        raise EpisodeError(f"{key} is {problem['input']!r}: {_lower(message)}.") from None


def _rounds_from_iterations(budget: dict[str, Any]) -> None:
    """A task may suggest R·I iterations: R is then as many rounds of I as that takes."""
    iterations, steps = budget.pop("iterations", None), budget.get("local_steps")
    if iterations and isinstance(steps, int) and steps > 0:
        budget.setdefault("rounds", -(-iterations // steps))


def _unknown_section(given: str, sections: Mapping[str, type[Section]]) -> EpisodeError:
    """The most frequent mistake is a setting without its section."""
    if given == "sweep":
        return EpisodeError("A [sweep] table is for `episode sweep`: use that, or leave it out.")
    homes = [f"{name}.{given}" for name, model in sections.items() if given in model.model_fields]
    if homes:
        return EpisodeError(f"There is no section {given!r}: did you mean {homes[0]!r}?")
    return unknown("section", given, [*sections, "task", "seed"])


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
