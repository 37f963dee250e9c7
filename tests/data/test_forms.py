"""Data as people have them: frames, dicts, lists of arrays, loaders, Hugging Face's datasets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import episode
from episode import EpisodeError, LazyClients

g = torch.Generator().manual_seed(0)
PARTS = [(torch.randn(20, 2, generator=g), torch.randn(20, 1, generator=g)) for _ in range(2)]


def on_pairs(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - batch[1]).square().mean()


def on_dicts(model: nn.Module, batch: Any) -> Tensor:
    x = batch["x"] if "x" in batch else torch.stack([batch["a"], batch["b"]], 1)
    return (model(x.float()) - batch["y"].float().reshape(-1, 1)).square().mean()


def trained(clients: Any, loss: Any = on_dicts, **options: Any) -> Tensor:
    torch.manual_seed(0)
    run = episode.fit(
        nn.Linear(2, 1), clients, loss, eta=0.1, gamma=0.1, local_steps=2, rounds=3,
        batch_size=4, **options,
    )  # fmt: skip
    return run.x


def frames() -> list[Any]:
    pd = pytest.importorskip("pandas")
    return [
        pd.DataFrame({"a": x[:, 0].double().numpy(), "b": x[:, 1].numpy(), "y": y[:, 0].numpy()})
        for x, y in PARTS
    ]


def test_a_list_of_arrays_is_a_tuple_of_them() -> None:
    expected = trained(PARTS, on_pairs)
    assert torch.equal(trained([[x, y] for x, y in PARTS], on_pairs), expected)
    assert torch.equal(trained([[x.numpy(), y.numpy()] for x, y in PARTS], on_pairs), expected)


def test_a_list_of_examples_stays_one() -> None:
    examples = [[(x[k], y[k]) for k in range(20)] for x, y in PARTS]
    assert torch.equal(trained(examples, on_pairs), trained(PARTS, on_pairs))


@pytest.mark.parametrize("holdout", [0.0, 0.2])
def test_dicts_and_frames_give_batches_of_columns(holdout: float) -> None:
    expected = trained(PARTS, on_pairs, holdout=holdout)
    dicts = [{"x": x, "y": y} for x, y in PARTS]
    arrays = [{"x": x.numpy(), "y": y[:, 0].tolist()} for x, y in PARTS]
    for clients in (dicts, arrays, frames(), LazyClients(2, lambda c: dicts[c])):
        assert torch.equal(trained(clients, holdout=holdout), expected)


def test_of_a_loader_the_dataset_is_taken_with_a_word(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "episode")
    loaders = [DataLoader(TensorDataset(x, y), batch_size=7, shuffle=True) for x, y in PARTS]
    assert torch.equal(trained(loaders, on_pairs), trained(PARTS, on_pairs))
    assert "Client 1 is a DataLoader: its dataset is taken, and its batch size" in caplog.text


def test_datasets_of_hugging_face_give_batches_of_columns() -> None:
    datasets = pytest.importorskip("datasets")
    clients = [
        datasets.Dataset.from_dict({"a": x[:, 0], "b": x[:, 1], "y": y[:, 0]}) for x, y in PARTS
    ]
    found, expected = trained(clients), trained(PARTS, on_pairs)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.allclose(trained([c.with_format("torch") for c in clients]), expected, atol=1e-6)
    with pytest.raises(EpisodeError, match="Client 0 is a dict of splits"):
        trained([datasets.DatasetDict({"train": clients[0]})])
    with pytest.raises(EpisodeError, match="Client 0 has a stream"):
        trained([clients[0].to_iterable_dataset()])


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize(
    ("client", "message"),
    [
        (
            Stream(),
            r"Client 0 has a stream .Stream., .* read it into a list first, list\(dataset\)",
        ),
        (DataLoader(Stream()), "Client 0 has a stream"),
        ({"x": torch.zeros(3, 2), "y": torch.zeros(2)}, "same number of examples, .*'x': 3, 'y'"),
        ({"x": ["a", "b"]}, "Client 0's column 'x' is not of numbers: leave it out, or encode it"),
        ({"x": torch.zeros(0, 2)}, "Client 0 has no examples"),
    ],
)
def test_what_cannot_be_trained_on_is_one_sentence(client: Any, message: str) -> None:
    with pytest.raises(EpisodeError, match=message) as caught:
        trained([client, client])
    assert "\n" not in str(caught.value)


def test_a_frame_with_words_names_the_column() -> None:
    pd = pytest.importorskip("pandas")
    with pytest.raises(EpisodeError, match="column 'town' is not of numbers"):
        trained([pd.DataFrame({"x": [1.0], "town": ["Bonn"]})])


def test_other_columns_are_other_data(tmp_path: Path) -> None:
    dicts = [{"x": x, "y": y} for x, y in PARTS]
    trained(dicts, folder=tmp_path)
    changed = [{"x": d["x"] + 1, "y": d["y"]} for d in dicts]
    with pytest.raises(EpisodeError, match=r"another configuration \(they differ in task.data"):
        trained(changed, folder=tmp_path)


def test_a_diagnosis_takes_the_same_forms() -> None:
    from episode.diagnosis.options import DiagnosisOptions

    quick = DiagnosisOptions(steps=6, points=4, local_steps=4, rehearsal=16)
    dicts = [{"x": np.asarray(x), "y": y} for x, y in PARTS]
    found = episode.diagnose(nn.Linear(2, 1), dicts, on_dicts, batch_size=4, options=quick)
    assert found.clients == 2
