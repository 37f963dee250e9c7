"""Pieces of one's own: what they are built from, stored as, and refused for."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from episode import (
    Algorithm,
    Clipping,
    Correction,
    Descent,
    EpisodeError,
    Resampled,
    Unclipped,
    Uncorrected,
    fit,
)
from episode.core.vectors import Scalar, Vector, add_, scale_
from episode.runs.config import read_experiment, to_toml
from episode.testing import check_algorithm


@dataclass(frozen=True)
class Soft(Clipping):
    """A step that is never longer than scale · γ."""

    scale: float = 1.0
    powers: tuple[int, ...] = ()

    def step_size(self, g_norm: Any, G_norm: Any, eta: Any, gamma: Any) -> Any:
        return eta / (1 + eta * g_norm / (self.scale * gamma))


@dataclass(frozen=True)
class Half(Clipping):
    """Half a step; it has no fields."""

    def step_size(self, g_norm: Any, G_norm: Any, eta: Any, gamma: Any) -> Any:
        return eta / 2


@dataclass(frozen=True)
class Fresh(Correction):
    """As Resampled."""

    probes = True


@dataclass(frozen=True)
class Averaged(Descent):
    """A descent with a velocity of its own."""

    share: float = 0.5

    @property
    def has_velocity(self) -> bool:
        return True

    def direction(
        self,
        gradient: Vector,
        shift: Vector | None,
        velocity: Vector | None,
        trust: Scalar = 1.0,
    ) -> Vector:
        g = super().direction(gradient, shift, None, trust)
        assert velocity is not None
        scale_(velocity, self.share)
        add_(velocity, g)
        return velocity


SOFT = Algorithm(Resampled(), Soft(2.0))


def rebuilt(algorithm: Algorithm) -> Algorithm:
    return Algorithm.from_dict(json.loads(json.dumps(algorithm.to_dict())))


def test_two_pieces_with_different_fields_are_two_algorithms() -> None:
    one, other = Algorithm(Resampled(), Soft(1)), Algorithm(Resampled(), Soft(50))
    assert one != other
    assert one.to_dict() != other.to_dict()
    assert other.to_dict()["clipping"] == {"name": f"{__name__}:Soft", "scale": 50, "powers": ()}
    assert rebuilt(one) == one
    assert rebuilt(other) == other


def test_a_piece_without_fields_is_its_name() -> None:
    algorithm = Algorithm(Fresh(), Half())
    assert algorithm.to_dict()["clipping"] == f"{__name__}:Half"
    assert algorithm.to_dict()["correction"] == f"{__name__}:Fresh"
    assert rebuilt(algorithm) == algorithm


def test_a_descent_of_ones_own_stands_for_itself_and_the_built_in_one_is_inlined() -> None:
    algorithm = Algorithm(Resampled(), Unclipped(), Averaged(share=0.25))
    values = algorithm.to_dict()
    assert values["descent"]["name"] == f"{__name__}:Averaged"
    assert values["descent"]["share"] == 0.25
    assert "momentum" not in values
    assert rebuilt(algorithm) == algorithm
    named = Algorithm.named("episode", descent=f"{__name__}:Averaged", weight_decay=0.1)
    assert named.descent == Averaged(weight_decay=0.1)
    assert "descent" not in Algorithm.named("episode", descent="sgd").to_dict()


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm",
    [
        Algorithm(Resampled(), Soft(1)),
        Algorithm(Fresh(), Soft(50), reuse_probe=True),
        Algorithm(Uncorrected(), Half()),
        Algorithm(Resampled(), Unclipped(), Averaged()),
    ],
    ids=lambda a: f"{a.correction.name}-{a.clipping.name}",
)
def test_pieces_of_ones_own_are_sound(algorithm: Algorithm) -> None:
    check_algorithm(algorithm)


def test_a_clipping_that_lies_about_needing_the_norm_is_caught() -> None:
    @dataclass(frozen=True)
    class Liar(Soft):
        def asks_for_norm(self, G_norm: Any, eta: Any, gamma: Any) -> bool:
            return False

    globals()["Liar"] = Liar
    Liar.__qualname__ = "Liar"
    with pytest.raises(AssertionError, match="follows its plain program"):
        check_algorithm(Algorithm(Resampled(), Liar()))


def train(folder: Path, algorithm: Algorithm) -> Any:
    generator = torch.Generator().manual_seed(0)
    clients = [
        (torch.randn(20, 3, generator=generator), torch.randn(20, 1, generator=generator) * k)
        for k in (1, 5)
    ]
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    return fit(
        model, clients, lambda m, batch: F.mse_loss(m(batch[0]), batch[1]), algorithm=algorithm,
        eta=0.1, gamma=0.1, local_steps=2, rounds=2, batch_size=8, folder=folder,
    )  # fmt: skip


def test_a_folder_of_one_field_is_not_that_of_another(tmp_path: Path) -> None:
    run = train(tmp_path, Algorithm(Resampled(), Soft(1)))
    again = train(tmp_path, Algorithm(Resampled(), Soft(1.0)))
    assert torch.equal(run.x, again.x)
    with pytest.raises(EpisodeError, match="scale"):
        train(tmp_path, Algorithm(Resampled(), Soft(50)))


PIECE = """
from dataclasses import dataclass
from typing import Any
from episode import Algorithm, Clipping, Correction, Resampled, EpisodeError

@dataclass(frozen=True)
class Soft(Clipping):
    scale: float = 1.0
    sharp: bool = False

    def __post_init__(self):
        if self.scale < 0:
            raise EpisodeError(f"scale is {self.scale}: it must be above 0.")
        if self.scale > 1000:
            raise ValueError("too large")

    def step_size(self, g_norm, G_norm, eta, gamma):
        return eta

@dataclass(frozen=True)
class Needy(Clipping):
    scale: float

    def step_size(self, g_norm, G_norm, eta, gamma):
        return eta

@dataclass(frozen=True)
class Ruleless(Clipping):
    scale: float = 1.0

class Undecorated(Clipping):
    def step_size(self, g_norm, G_norm, eta, gamma):
        return eta

@dataclass(frozen=True)
class Stranger:
    scale: float = 1.0

@dataclass(frozen=True)
class Confused(Correction):
    probes = True
    remembers = True

MINE = Algorithm(Resampled(), Soft(7.0))
NUMBER = 3
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "piece.py").write_text(PIECE)
    return tmp_path / "piece.py"


CELL = ["algorithm.correction=resampled"]


def test_a_config_names_a_piece_in_three_ways_that_are_one(file: Path) -> None:
    one = read_experiment(None, [*CELL, "algorithm.clipping=piece.py:Soft"])
    named = [*CELL, "algorithm.clipping.name=piece.py:Soft", "algorithm.clipping.scale=1"]
    toml = file.with_name("c.toml")
    toml.write_text(
        "algorithm = { correction = 'resampled', clipping = { name = 'piece.py:Soft' } }\n"
    )
    assert one == read_experiment(None, named) == read_experiment(toml)
    assert one.to_dict()["algorithm"]["clipping"] == {
        "name": "piece.py:Soft", "scale": 1.0, "sharp": False,
    }  # fmt: skip
    assert one.name.startswith("digits-resampled-Soft-")
    more = [*CELL, "algorithm.clipping=piece.py:Soft", "algorithm.clipping.scale=50"]
    other = read_experiment(None, [*more, "algorithm.clipping.sharp=True"])
    assert other.plan().algorithm.clipping.scale == 50.0  # type: ignore[attr-defined]
    assert other.plan().algorithm.clipping.sharp is True  # type: ignore[attr-defined]
    assert other.id != one.id
    toml.write_text(to_toml(other.to_dict()))
    assert read_experiment(toml) == other


def test_a_config_names_an_algorithm_in_a_file(file: Path) -> None:
    experiment = read_experiment(None, ["algorithm=piece.py:MINE", "algorithm.momentum=0.9"])
    assert experiment.algorithm.label == "MINE"
    values = experiment.to_dict()["algorithm"]
    assert values["clipping"]["scale"] == 7.0  # the file may change: the folder must not lie
    toml = file.with_name("c.toml")
    toml.write_text(to_toml(experiment.to_dict()))
    assert read_experiment(toml) == experiment
    toml.write_text(to_toml(experiment.to_dict()).replace("scale = 7.0", "scale = 8.0"))
    with pytest.raises(EpisodeError, match="another clipping is given too"):
        read_experiment(toml)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["algorithm.clipping=piece.py:Sofd"], "no clipping 'piece.py:Sofd': did you mean 'piece"),
        (["algorithm.clipping=episodc"], "no clipping 'episodc': did you mean 'episodic'"),
        (["algorithm.clipping=none.py:Soft"], "There is no file none.py"),
        (["algorithm.clipping=no.such:Soft"], "no module 'no' is installed"),
        (["algorithm.clipping=piece.py:Ruleless"], "Ruleless has no step_size of its own: define"),
        (["algorithm.clipping=piece.py:Undecorated"], "Undecorated is not a frozen dataclass"),
        (["algorithm.clipping=piece.py:Stranger"], "Stranger is not a clipping: derive it from"),
        (["algorithm.clipping=piece.py:NUMBER"], "NUMBER is not a clipping"),
        (["algorithm.clipping=resampled"], "There is no clipping 'resampled'"),
        (["algorithm.correction=piece.py:Soft"], "Soft is not a correction: derive it from"),
        (["algorithm.correction=piece.py:Confused"], "must not both probe and remember"),
        (["algorithm.clipping=piece.py:Needy"], "missing 1 required positional argument: 'scale'"),
        (["algorithm.clipping=episodic", "algorithm.descent=piece.py:Soft"], "is not a descent"),
        (
            ["algorithm.clipping=piece.py:Soft", "algorithm.clipping.scal=2"],
            "There is no setting 'algorithm.clipping.scal': did you mean 'algorithm.clipping.scale",
        ),
        (
            ["algorithm.clipping=piece.py:Soft", "algorithm.clipping.scale=fast"],
            "algorithm.clipping.scale is 'fast': it must be a number",
        ),
        (
            ["algorithm.clipping=piece.py:Soft", "algorithm.clipping.sharp=2"],
            "algorithm.clipping.sharp is 2: it must be true or false",
        ),
        (["algorithm.clipping=piece.py:Soft", "algorithm.clipping.scale=-1"], "it must be above 0"),
        (
            ["algorithm.clipping=piece.py:Soft", "algorithm.clipping.scale=2000"],
            "piece.py:Soft cannot be built: ValueError in line 15: too large",
        ),
        (
            ["algorithm.clipping=episodic", "algorithm.clipping.scale=2"],
            "There is no setting 'algorithm.clipping.scale'",
        ),
        (["algorithm.clipping.scale=2"], "The algorithm has no clipping"),
        (
            ["algorithm.clipping=episodic", "algorithm.momentum=fast"],
            "algorithm.momentum is 'fast'",
        ),
        (["algorithm.clipping=episodic", "algorithm.probe_batches=1.5"], "must be a whole number"),
    ],
)
def test_a_bad_piece_is_refused_in_a_sentence(
    overrides: list[str], message: str, file: Path
) -> None:
    first = [] if any("correction" in o for o in overrides) else CELL
    rest = ["algorithm.clipping=unclipped"] if not first else []
    with pytest.raises(EpisodeError, match=message):
        read_experiment(None, [*first, *rest, *overrides])


def test_an_algorithm_that_is_none_is_refused(file: Path) -> None:
    with pytest.raises(EpisodeError, match=r"piece.py:Soft.: give a name"):
        read_experiment(None, ["algorithm=piece.py:Soft"])


def test_a_piece_that_is_not_frozen_cannot_be_imported(file: Path) -> None:
    file.write_text(PIECE.replace("@dataclass(frozen=True)\nclass Ruleless", "@dataclass\nclass R"))
    with pytest.raises(EpisodeError, match="cannot be imported: TypeError in line 27: cannot inh"):
        read_experiment(None, [*CELL, "algorithm.clipping=piece.py:Soft"])


def test_classes_and_strangers_are_refused_in_python() -> None:
    with pytest.raises(EpisodeError, match=r"The clipping is a class: give Half\(\)"):
        Algorithm(Resampled(), Half)  # type: ignore[arg-type]
    with pytest.raises(
        EpisodeError, match=r"str is not a correction: derive it from episode\.Corr"
    ):
        Algorithm("resampled", Half())  # type: ignore[arg-type]
    with pytest.raises(
        EpisodeError, match=r"algorithm\.clipping\.scale is 'fast': it must be a num"
    ):
        Algorithm(Resampled(), Soft("fast"))  # type: ignore[arg-type]
