"""A task that is built for some clients is the same task, and holds nothing of the others."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from episode import EpisodeError
from episode.federation.protocols import Draw, Task
from episode.tasks import task_named
from episode.tasks.settings import Share, TaskSettings
from official import write_cifar10, write_imagenet, write_sentiment140, write_snli, write_vectors

LABELS = {"north": ("no", "yes"), "south": ("yes", "maybe"), "west": ("no", "maybe")}
"""No silo has all labels."""


def write_notes(folder: Path, name: str, rows: int = 40, **columns: str) -> Path:
    place = folder / name
    place.mkdir(parents=True)
    words = ("good", "bad", "day", name, "Night")
    with (place / "notes.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([columns.get("text", "text"), columns.get("label", "label")])
        for k in range(rows):
            text = " ".join(words[(k * 7 + j) % len(words)] for j in range(2 + k % 4))
            writer.writerow([text, LABELS[name][k % 2]])
    return place


def made(name: str, folder: Path) -> TaskSettings:
    """Return the settings of a task with small data in the folder."""
    small: dict[str, Any] = {"num_clients": 3, "batch_size": 4}
    vectors = str(write_vectors(folder / "vectors.txt.gz"))
    if name == "digits":
        return task_named("digits")(num_clients=3, similarity=20)
    if name == "snli":
        small |= {"data": str(write_snli(folder / name)), "hidden": 6, "classifier": 6}
    elif name == "sentiment140":
        small |= {"data": str(write_sentiment140(folder / name)), "hidden": 6}
    elif name == "cifar10":
        small |= {"data": str(write_cifar10(folder / name)), "width": 4, "train_evaluated": 50}
    elif name == "imagenet":
        small |= {"data": str(write_imagenet(folder / name)), "width": 4, "image_size": 16}
    elif name == "silos of images":
        for silo in LABELS:
            write_imagenet(folder / name / silo)
            (folder / name / silo / "val").rename(folder / name / silo / "test")
        small = {"model": "resnet8", "width": 4, "image_size": 16, "batch_size": 4}
    else:
        for k, silo in enumerate(LABELS):
            write_notes(folder / name, silo, 30 + 20 * k)
        small = {"hidden": 6, "batch_size": 4, "train_evaluated": 60}
        (folder / "words.txt").write_text("good\nday\nbad\n")
        words = {"vectors": vectors, "words": str(folder / "words.txt"), "buckets": 64}
        kind = name.rpartition(" ")[2]
        key = {"vectors": "vectors", "words": "vocabulary", "buckets": "word_buckets"}[kind]
        small[key] = words[kind]
    if name in ("snli", "sentiment140"):
        small["vectors"] = vectors
    if name.startswith("silos"):
        return task_named("silos")(data=str(folder / name), **small)
    return task_named(name)(**small)


NAMES = (
    "digits", "snli", "sentiment140", "cifar10", "imagenet",
    "silos by vectors", "silos by words", "silos by buckets", "silos of images",
)  # fmt: skip


def gradients(task: Task, clients: range | list[int]) -> dict[int, torch.Tensor]:
    """Return the gradients of a few draws of each client, at x_0."""
    objective = task.objective()
    x, buffers = task.initial()
    found = {}
    for client in clients:
        flat = []
        for stream in ("probe", "local"):
            for index in (0, 5):
                objective.x.copy_(x)
                objective.load_buffers(buffers)
                blocks = objective.gradient(Draw(client, stream, index))[1]
                flat += [block.reshape(-1) for block in blocks]
        found[client] = torch.cat(flat)
    return found


def own_of(settings: TaskSettings, client: int) -> dict[str, str]:
    """Return what a real site would give for itself: of silos, its own folder."""
    values = settings.model_dump()
    own = {n: str(values[n]) for n in settings.site_settings if values.get(n)}
    if type(settings).__name__ == "Silos":
        own["data"] = str(Path(values["data"]) / sorted(LABELS)[client])
    return own


def without_paths(settings: TaskSettings) -> TaskSettings:
    """Return the settings as a server has them: without data."""
    return (
        settings.model_copy(update={"data": None}) if "data" in settings.site_settings else settings
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_ranks_that_hold_some_clients_compute_what_one_process_does(
    name: str, tmp_path: Path
) -> None:
    settings = made(name, tmp_path)
    whole = settings.build(1, "cpu")
    expected, (x, buffers) = gradients(whole, range(3)), whole.initial()
    parts = []
    for clients in ([0, 2], [1]):
        share = settings.build_share(Share(clients), 1, "cpu")
        assert list(share.clients) == clients
        assert share.num_clients == 3
        found = gradients(share, clients)
        assert all(torch.equal(found[c], expected[c]) for c in clients)
        assert [share.examples(c) for c in range(3)] == [whole.examples(c) for c in range(3)]
        with pytest.raises(KeyError):
            share.batches[0 if clients == [1] else 1]
        part = share.evaluate_part(x, buffers)
        assert part is not None
        parts.append(json.loads(json.dumps(part)))
    assert whole.combine(parts[::-1]) == whole.evaluate(x, buffers)
    assert settings.sizes(1) == [whole.examples(c) for c in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_sites_that_see_their_own_data_compute_what_one_process_does(
    name: str, tmp_path: Path
) -> None:
    settings = made(name, tmp_path)
    whole = settings.build(1, "cpu")
    expected, (x, buffers) = gradients(whole, range(3)), whole.initial()
    config = without_paths(settings)
    facts = {c: json.loads(json.dumps(config.facts(c, own_of(settings, c), 1))) for c in range(3)}
    agreed = config.agree(facts)
    server = config.build_share(Share((), agreed), 1, "cpu")
    assert not server.clients
    assert torch.equal(server.initial()[0], x)
    assert server.label_counts is not None
    assert whole.label_counts is not None
    assert server.label_counts.counts == whole.label_counts.counts
    parts = []
    for client in range(3):
        told = json.loads(json.dumps(config.told(agreed, client)))
        share = Share((client,), told, own_of(settings, client))
        site = config.build_share(share, 1, "cpu")
        assert torch.equal(gradients(site, [client])[client], expected[client])
        part = site.evaluate_part(x, buffers)
        parts.append(json.loads(json.dumps(part)))
    assert server.combine(parts) == whole.evaluate(x, buffers)


def test_a_share_keeps_only_its_own_examples_in_memory(tmp_path: Path) -> None:
    settings = made("cifar10", tmp_path)
    whole, share = settings.build(0, "cpu"), settings.build_share(Share([1]), 0, "cpu")
    assert _held(share) == share.examples(1) < _held(whole) / 2


def _held(task: Any) -> int:
    return len(task.batches[1]._dataset._images)


def facts_of(sites: Mapping[str, Path], **settings: Any) -> tuple[TaskSettings, dict[int, Any]]:
    config = task_named("silos")(hidden=6, batch_size=4, **settings)
    return config, {
        c: config.facts(c, {"data": str(folder)}, 0) for c, folder in enumerate(sites.values())
    }


def test_sites_tell_names_and_counts_and_no_rows(tmp_path: Path) -> None:
    sites = {name: write_notes(tmp_path, name) for name in LABELS}
    config, facts = facts_of(sites, word_buckets=16)
    assert facts[1] == {
        "name": "south", "counts": {"maybe": 16, "yes": 16}, "own_file": False, "words": None,
    }  # fmt: skip
    agreed = config.agree(facts)
    assert agreed["labels"] == ["maybe", "no", "yes"]
    assert set(config.told(agreed, 1)) == {"labels", "words", "num_clients", "start", "total"}


def test_a_site_with_another_file_of_vectors_is_named(tmp_path: Path) -> None:
    sites = {name: write_notes(tmp_path, name) for name in LABELS}
    config = task_named("silos")(hidden=6, vectors="v.txt")
    paths = [write_vectors(tmp_path / f"{k}.txt.gz", 8 if k < 2 else 9) for k in range(3)]
    facts = {
        c: config.facts(c, {"data": str(folder), "vectors": str(paths[c])}, 0)
        for c, folder in enumerate(sites.values())
    }
    with pytest.raises(EpisodeError, match=r"Site 2 \(west\) has .*\"size\": 9.* for the words"):
        config.agree(facts)


def test_a_site_with_an_unknown_label_names_it(tmp_path: Path) -> None:
    folder = write_notes(tmp_path, "south")
    config = task_named("silos")(hidden=6, word_buckets=16, labels=("no", "yes"))
    with pytest.raises(EpisodeError, match=r"the label 'maybe', which is not one of no, yes"):
        config.facts(0, {"data": str(folder)}, 0)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: (f / "notes.csv").unlink(), "has no data"),
        (
            lambda f: (f / "notes.csv").write_text("note,class\na,b\n"),
            "has the columns note, class",
        ),
        (lambda f: (f / "notes.csv").write_text("text,label\na,no\n"), "too few rows to train on"),
    ],
)
def test_a_site_whose_folder_is_wrong_says_what_is_wrong(
    spoil: Any, sentence: str, tmp_path: Path
) -> None:
    folder = write_notes(tmp_path, "north")
    spoil(folder)
    config = task_named("silos")(hidden=6, word_buckets=16)
    with pytest.raises(EpisodeError, match=sentence):
        config.facts(0, {"data": str(folder)}, 0)


def test_messages_about_rows_do_not_show_them(tmp_path: Path) -> None:
    folder = tmp_path / "north"
    folder.mkdir()
    (folder / "notes.jsonl").write_text('{"text": ["the patient is"], "label": "no"}\n')
    config = task_named("silos")(hidden=6, word_buckets=16)
    with pytest.raises(EpisodeError) as raised:
        config.facts(0, {"data": str(folder)}, 0)
    assert "patient" not in str(raised.value)
    assert "has a list for its text" in str(raised.value)


def test_sites_cannot_learn_words_that_nobody_has_listed(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match=r"give task\.word_buckets"):
        task_named("silos")(hidden=6).check_at_sites()
    task_named("silos")(model="resnet8").check_at_sites()


def test_a_file_of_words_and_buckets_decide_the_rows_of_words(tmp_path: Path) -> None:
    from episode.data.vocabulary import hashed_words, listed_words

    (tmp_path / "words.txt").write_text("day\nGood\n\n")
    words = {"<s>": 0, "</s>": 1, "Good": 2, "good": 3, "Day": 4}
    assert listed_words(words, tmp_path / "words.txt").row_of.tolist() == [0, 1, 3, -1, 2]
    hashed = hashed_words(words, 7).row_of.tolist()
    assert hashed[2] == hashed[3]
    assert all(2 <= row < 9 for row in hashed[2:])
    for text in ("", "two words\n"):
        (tmp_path / "words.txt").write_text(text)
        with pytest.raises(EpisodeError, match=r"The vocabulary .* (is empty|has 'two words')"):
            listed_words(words, tmp_path / "words.txt")
