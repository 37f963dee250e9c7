"""Flower projects of users: a FedAvg project, the same with the README's diff, and the example."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from deployment import Deployment
from readme_project import PROJECT, ROOT, apply, changed, diff_of
from torch import Tensor

import episode

SITES, BATCH = 3, 16


def load(app: Path) -> ModuleType:
    spec = spec_from_file_location("changed_app", app)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def simulated(project: ModuleType) -> dict[str, Tensor]:
    """Return the model that the changed project should train, from `episode.fit`."""
    from flwr.app import Context, RecordDict

    contexts = [
        Context(1, 1, {"partition-id": c, "num-partitions": SITES}, RecordDict(), {})
        for c in range(SITES)
    ]
    model = project.Net()
    episode.fit(
        model,
        [project.load_data(context) for context in contexts],
        loss=project.loss,
        algorithm="episode",
        eta=0.1,
        gamma=0.1,
        local_steps=8,
        rounds=3,
        batch_size=BATCH,
        workers=1,
    )
    return {name: t.clone() for name, t in model.state_dict().items()}


@pytest.mark.parametrize("page", ["README.md", "docs/flower.md"])
def test_three_lines_lie_between_fedavg_and_episode(page: str) -> None:
    before = (PROJECT / "app.py").read_text().splitlines()
    after = apply(diff_of(page), "\n".join(before)).splitlines()
    assert len(set(after) - set(before)) == 3
    assert len(after) == len(before) + 1  # two of them replace one each
    assert "episode" not in (PROJECT / "app.py").read_text()


@pytest.mark.long
@pytest.mark.timeout(720)
def test_flwr_run_takes_projects_as_they_are(tmp_path: Path) -> None:
    with Deployment(tmp_path / "d", sites=SITES, simulation=True) as deployment:

        def model_of(project: Path, name: str, *changes: str) -> dict[str, Tensor]:
            number = deployment.run(project, changes)
            assert deployment.wait(number, 220) == "finished:completed", deployment.log()
            found: dict[str, Tensor] = torch.load(tmp_path / "d" / name, weights_only=True)
            return found

        plain = model_of(PROJECT, "plain.pt", 'model="plain.pt"')
        ours = model_of(changed(tmp_path / "changed"), "ours.pt", 'model="ours.pt"')
        example = model_of(ROOT / "examples" / "flower", "digits_sites.pt", "num-rounds=2")
    expected = simulated(load(tmp_path / "changed" / "app.py"))
    assert all(torch.equal(ours[name], expected[name]) for name in expected)
    assert not torch.equal(plain["0.bias"], ours["0.bias"])
    assert example["2.bias"].shape == (10,)
