"""Configs: read, overridden, written back; every mistake is one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from episode import ALGORITHMS, AdamW, EpisodeError, ServerAdam, ServerSGD
from episode.runs.config import Experiment, read_experiment, to_toml
from episode.runs.trainer import job_of


def test_an_empty_config_is_episode_on_digits() -> None:
    experiment = read_experiment(None)
    assert experiment.task_name == "digits"
    assert experiment.algorithm.label == "episode"
    assert (experiment.schedule.eta, experiment.schedule.gamma) == (1.0, 0.1)


def test_a_config_survives_toml_and_json(tmp_path: Path) -> None:
    sets = ["task.similarity=30", "algorithm.momentum=0.9", "cohorts.kind=uniform"]
    sets += ["cohorts.cohort_size=4", "schedule.kind=step", "schedule.milestones=[0.6, 0.8]"]
    experiment = read_experiment(None, sets)
    file = tmp_path / "config.toml"
    file.write_text(to_toml(experiment.to_dict()))
    assert read_experiment(file) == experiment
    assert Experiment.from_dict(json.loads(json.dumps(experiment.to_dict()))) == experiment


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_survives_the_config_of_its_run(name: str, tmp_path: Path) -> None:
    experiment = read_experiment(None, [f"algorithm={name}"])
    file = tmp_path / "config.toml"
    file.write_text(to_toml(experiment.to_dict()))
    assert read_experiment(file) == experiment
    assert experiment.algorithm.build() == ALGORITHMS[name]


def test_fields_of_server_steps_and_descents_can_be_set() -> None:
    sets = ["algorithm=diloco", "algorithm.server.rate=0.5", "algorithm.weight_decay=0.2"]
    algorithm = read_experiment(None, sets).algorithm.build()
    assert algorithm.server == ServerSGD(0.5, 0.9, nesterov=True)
    assert algorithm.descent == AdamW(weight_decay=0.2)
    sets = ["algorithm=fedavg", "algorithm.server=adam", "algorithm.server.rate=0.3"]
    sets += ["algorithm.descent=adamw", "algorithm.descent.moments=reset"]
    algorithm = read_experiment(None, sets).algorithm.build()
    assert (algorithm.server, algorithm.descent) == (ServerAdam(0.3), AdamW(moments="reset"))


def test_the_id_is_that_of_the_result_not_of_the_speed() -> None:
    plain = read_experiment(None)
    faster = ["engine.workers=2", "record.checkpoint_seconds=0"]
    assert read_experiment(None, faster).id == plain.id
    assert read_experiment(None, ["seed=1"]).id != plain.id
    assert read_experiment(None, ["schedule.eta=0.5"]).id != plain.id


def test_a_cell_of_the_grid_can_be_asked_for_by_its_coordinates() -> None:
    cell = ["algorithm.correction=remembered", "algorithm.clipping=guarded"]
    experiment = read_experiment(None, cell)
    assert experiment.algorithm.label == "remembered-guarded"
    assert experiment.plan().algorithm.clipping.name == "guarded"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("algorithm=epsode", "There is no algorithm 'epsode': did you mean 'episode'"),
        ("task=digit", "There is no task 'digit': did you mean 'digits'"),
        ("engine=simulaton", "did you mean 'simulation'"),
        ("algorithm.nmae=x", "There is no setting 'algorithm.nmae'"),
        ("schedule.etta=1", "did you mean 'schedule.eta'"),
        ("shedule.eta=1", "There is no section 'shedule': did you mean 'schedule'"),
        ("schedule.eta=0", "eta is 0.0: it must be a positive"),
        ("schedule.gamma=nan", "gamma is nan"),
        ("schedule.eta=fast", "schedule.eta is 'fast': input should be a valid number"),
        ("task.similarity=101", "task.similarity is 101"),
        ("task.num_clients=0", "task.num_clients is 0"),
        ("task.time_steps=5", "task.time_steps is 5"),
        ("algorithm.correction=uncorrected", "The algorithm has no clipping"),
        ("schedule=3", "schedule is 3: it must be a section"),
        ("seed.a=3", "seed"),
        ("eta", "not of the form section.key=value"),
        ("cohorts.kind=uniform", "cohorts.cohort_size is missing"),
        ("cohorts.kind=cyclic", "cohorts.groups is missing"),
        ("cohorts.cohort_size=2", "needs cohorts.kind"),
        ("cohorts.kind=some", "cohorts.kind is 'some'"),
        ("engine.workers=0", "engine.workers is 0"),
        ("algorithm.reuse_probe=1.5", "algorithm.reuse_probe is 1.5"),
        ("algorithm.descent=3", "algorithm.descent is 3: it must be a name"),
        ("cohorts.kind=[1]", "cohorts.kind is [1]: use one of"),
        ("seed=true", "seed is true: it must be a number, not true or false"),
        ("schedule.eta=true", "schedule.eta is true: it must be a number"),
        ("budget.rounds=true", "budget.rounds is true: it must be a number"),
        ("budget.iterations=true", "budget.iterations is True: it must be a whole number"),
        ("budget.iterations=0", "budget.iterations is 0: it must be a whole number of 1 or more"),
        ("budget.iterations=1e3", "budget.iterations is 1000.0: it must be a whole number"),
        ("engine.retries=false", "engine.retries is false: it must be a number"),
        ("record.evaluate_every=true", "record.evaluate_every is true: it must be a number"),
        ("task.num_clients=true", "task.num_clients is true: it must be a number"),
        ("algorithm.momentum=true", "algorithm.momentum is True: it must be a number"),
    ],
)
def test_every_mistake_is_a_sentence(override: str, message: str) -> None:
    with pytest.raises(EpisodeError, match=message.replace("[", r"\[")):
        read_experiment(None, [override])


@pytest.mark.parametrize("task", ["digits", "snli"])  # one suggests rounds, the other iterations
def test_iterations_of_the_users_own_decide_the_rounds(task: str) -> None:
    named = [f"task={task}", "budget.local_steps=3"]
    assert read_experiment(None, [*named, "budget.iterations=1000"]).budget.rounds == 334
    assert read_experiment(None, [*named, "budget.rounds=7"]).budget.rounds == 7
    with pytest.raises(EpisodeError, match=r"budget\.iterations are both given"):
        read_experiment(None, [*named, "budget.rounds=7", "budget.iterations=1000"])
    with pytest.raises(EpisodeError, match=r"budget\.local_steps is 'x'"):
        read_experiment(None, [f"task={task}", "budget.local_steps=x", "budget.iterations=10"])


def test_booleans_in_a_file_are_not_numbers_either(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("seed = true\n")
    with pytest.raises(EpisodeError, match="seed is true: it must be a number"):
        read_experiment(file)
    file.write_text("[cohorts]\nkind = 'uniform'\ncohort_size = true\n")
    with pytest.raises(EpisodeError, match=r"cohorts\.cohort_size is true"):
        read_experiment(file)
    file.write_text("[schedule]\nkind = 'step'\nmilestones = [0.5, true]\n")
    with pytest.raises(EpisodeError, match=r"schedule\.milestones is \[0.5, true\]"):
        read_experiment(file)
    file.write_text("[algorithm]\nname = 'episode'\nreuse_probe = true\n")
    assert read_experiment(file).plan().algorithm.reuse_probe


@pytest.mark.parametrize("device", ["cuda:99", "toaster", "meta"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    with pytest.raises(EpisodeError, match=f"engine.device is '{device}', which cannot be used"):
        job_of(read_experiment(None, [f"engine.device={device}"]))


def test_a_meaningless_cell_is_refused_by_name() -> None:
    cell = ["algorithm.correction=uncorrected", "algorithm.clipping=episodic"]
    with pytest.raises(EpisodeError, match="Episodic clipping needs a global gradient"):
        read_experiment(None, cell)
    with pytest.raises(EpisodeError, match="name the algorithm, or its cell, not both"):
        read_experiment(None, [*cell, "algorithm.name=episode"])


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match=r"There is no config .*none\.toml"):
        read_experiment(tmp_path / "none.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("[task\n")
    with pytest.raises(EpisodeError, match=r"broken\.toml cannot be read"):
        read_experiment(broken)
    with pytest.raises(EpisodeError, match="is not a run folder"):
        read_experiment(tmp_path)


def test_slopes_and_curvatures_must_match() -> None:
    with pytest.raises(EpisodeError, match="2 slopes and 1 curvatures"):
        read_experiment(None, ["task=quadratics", "task.curvatures=[1.0]"])
