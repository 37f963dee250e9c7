"""Your own silos: a folder per silo becomes a federation, without any code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from episode.data import silos
from episode.data.batches import LabelledDataset
from episode.data.holdout import hold_out
from episode.data.images import ImageFiles
from episode.data.partition import Partition
from episode.data.storage import PreparedArrays, fingerprint, prepare_arrays
from episode.data.texts import Texts
from episode.data.vocabulary import MARKS
from episode.errors import EpisodeError
from episode.models.lstm import TextClassifier
from episode.models.mlp import MLP
from episode.models.resnet import ARCHITECTURES, ResNet
from episode.models.text import frozen_words
from episode.tasks.agreement import (
    absent_vectors,
    agreement,
    require_equal,
    server_data,
    told,
)
from episode.tasks.classification import ClassificationData, check_trained, classifier
from episode.tasks.evaluation import Split, own_blocks
from episode.tasks.imagenet import LARGE
from episode.tasks.neural import NeuralTask
from episode.tasks.settings import Share
from episode.tasks.silo_arrays import (
    SiloSplit,
    number_labels,
    partition_of,
    rows_by_silo,
    split_silo,
    write_images,
    write_texts,
)
from episode.tasks.silo_numbers import (
    Scaling,
    dataset_of,
    moments_of,
    scaling_of,
    told_moments,
    write_numbers,
)
from episode.tasks.silo_settings import SiloSettings

Folders = Mapping[int, Path]
"""The folder of each silo that is on this machine, by its client's number."""


class Silos(SiloSettings):
    """Each folder below `data` is a client: tables of text and label, or folders of images.

    Files named test.* and validation.* are held out; if there are none, each silo holds out a share
    of its rows. The model is evaluated on the held-out rows of all silos, and for each silo on its
    own (with `holdout`, on a share of what it would train on). Without `vectors`, word vectors are
    learned with the model. At real sites each site names its own folder, and the words must be
    known beforehand: by `vectors`, a `vocabulary` or `word_buckets`.
    """

    defaults: ClassVar[dict[str, dict[str, Any]]] = {
        "schedule": {"eta": 0.3, "gamma": 0.3},
        "budget": {"rounds": 50, "local_steps": 4},
        "record": {"evaluate_every": 5},
    }
    site_settings: ClassVar[tuple[str, ...]] = ("data", "vectors", "vocabulary")

    def build(self, seed: int, device: str) -> NeuralTask:
        return self.build_share(Share(), seed, device)

    def build_share(self, share: Share, seed: int, device: str) -> NeuralTask:
        if share.agreed and not share.clients:
            return self._build_without_data(share.agreed, seed, device)
        here = self.model_copy(update=dict(share.own))
        at_site = "start" in share.agreed
        folders = here._folders(share.clients if at_site else None)
        arrays = here._prepare(folders, share.agreed.get("labels", self.labels))
        if at_site and (words := arrays.info.get("vocabulary")) != share.agreed["words"]:
            raise EpisodeError(f"The words at this site changed to {words} after it had told them.")
        data = here._data(arrays, folders, seed, share)
        if at_site:  # it has seen its own rows only
            data = replace(
                data,
                parts=dict(zip(folders, data.parts.values(), strict=True)),
                own=dict(zip(folders, (data.own or {}).values(), strict=True)),
                starts=dict.fromkeys(folders, share.agreed["start"]),
                num_clients=share.agreed["num_clients"],
                total=share.agreed["total"],
                label_counts=None,
            )
        else:
            data = data.restricted_to(share)
        vectors = arrays.get("vectors")
        rows = len(arrays.info.get("columns", ())) or arrays.info.get("words", 0)
        classes = len(arrays.info["labels"])
        return classifier(
            self, lambda: self._make_model(vectors, rows, classes), data, seed, device
        )

    def partition(self, seed: int) -> Partition:
        folders = self._folders()
        arrays = self._prepare(folders, self.labels)
        names = [folder.name for folder in folders.values()]
        return partition_of(arrays, names, self._splits(arrays, folders, seed))

    def partition_summary(self) -> str:
        return "one client per silo"

    def check_at_sites(self) -> None:
        if self.model not in (*ARCHITECTURES, "mlp"):
            self.check_words_at_sites()

    def facts(self, client: int, own: Mapping[str, str], seed: int) -> dict[str, Any]:
        self.check_at_sites()
        here = self.model_copy(update=dict(own))
        at_site = "data" in own
        folders = here._folders([client] if at_site else None)
        if client not in folders:
            raise EpisodeError(
                f"There are {len(folders)} silos in {self.data}, and this is site {client}: number "
                f"sites from 0 to {len(folders) - 1}."
            )
        rows = [row for row in here._rows(folders) if row.silo == client]
        number_labels(rows, self.labels or sorted({row.label for row in rows}))
        by_split = {
            split: torch.tensor([k for k, row in enumerate(rows) if row.split == split])
            for split in {row.split for row in rows}
        }
        split = self._split(client, by_split, seed, folders)
        return {
            "name": folders[client].name,
            "counts": dict(sorted(Counter(rows[k].label for k in split.train.tolist()).items())),
            "own_file": split.own_file,
            "words": here.words_facts(),
            **(
                {"numbers": told_moments([rows[k] for k in split.train], here._columns(folders))}
                if self.model == "mlp"
                else {}
            ),
        }

    def agree(self, facts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        require_equal(
            facts,
            {
                "own_file": f"whether there is a {self.evaluate_on} file",
                "words": "the words (checksum and size of the file)",
            },
        )
        labels = self.labels or sorted(
            {label for fact in facts.values() for label in fact["counts"]}
        )
        if len(labels) < 2:
            raise EpisodeError(
                f"All rows of all sites have the label {labels[0]!r}: two labels are needed."
            )
        sizes = [sum(facts[client]["counts"].values()) for client in sorted(facts)]
        return agreement(labels, sizes, facts) | self._agreed_scaling(facts)

    def told(self, agreed: Mapping[str, Any], client: int) -> dict[str, Any]:
        return told(agreed, client) | {k: agreed[k] for k in ("scaling",) if k in agreed}

    def _agreed_scaling(self, facts: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """Return mean and deviation of each column, if the sites have tables of numbers."""
        if self.model != "mlp":
            return {}
        told_columns = {c: {"columns": f["numbers"]["columns"], **f} for c, f in facts.items()}
        require_equal(told_columns, {"columns": "the columns of its tables"})
        own = [facts[client]["numbers"] for client in sorted(facts)]
        return {"scaling": scaling_of(own[0]["columns"], own)}

    def _build_without_data(self, agreed: Mapping[str, Any], seed: int, device: str) -> NeuralTask:
        """Build the task of a server, which knows the model and who has which labels."""
        words, classes = agreed["words"], len(agreed["labels"])
        vectors = absent_vectors(words) if self.vectors else None
        rows = words["size"] if words else MARKS + (self.word_buckets or 0)
        if self.model == "mlp":
            rows = len(agreed["scaling"]["columns"])
        data = server_data(agreed, self.partition_summary(), seed, evaluates_own=True)
        return classifier(
            self, lambda: self._make_model(vectors, rows, classes), data, seed, device
        )

    def _folders(self, clients: Sequence[int] | None = None) -> Folders:
        """Return the silos' folders; with `clients`, the one client whose folder `data` is."""
        if self.data is None:
            raise EpisodeError(
                "task.data is missing: give the folder that has a folder for each silo (--data). "
                "At a real site it is the site's own folder: episode flower site --data."
            )
        root = Path(self.data).expanduser()
        if clients is None:
            return dict(enumerate(silos.silo_folders(root)))
        (client,) = clients
        return {client: silos.own_folder(root)}

    def _kind(self, folders: Folders) -> silos.Kind:
        kind = silos.kind_of(list(folders.values()))
        wanted = "images" if self.model in ARCHITECTURES else "texts"
        if kind != wanted:
            fitting = "resnet18" if kind == "images" else "lstm"
            raise EpisodeError(
                f"The silos in {self.data} hold {kind}, but {self.model} reads {wanted}: "
                f"use --model {fitting}."
            )
        return kind

    def _rows(self, folders: Folders) -> Iterator[silos.Row]:
        if self._kind(folders) == "images":
            return silos.images(folders)
        if self.model == "mlp":
            return silos.numbers(folders, self._columns(folders), self.label_column)
        return silos.texts(folders, self.text_column, self.label_column)

    def _columns(self, folders: Folders) -> list[str]:
        return silos.number_columns(folders, self.label_column)

    def _prepare(self, folders: Folders, labels: Sequence[str] | None) -> PreparedArrays:
        kind = self._kind(folders)
        files = {n: silos.files_of(folder, kind) for n, folder in folders.items()}
        key = {
            "kind": "numbers" if self.model == "mlp" else kind,
            "columns": [self.text_column, self.label_column],
            "files": {n: [fingerprint(file) for file in own] for n, own in files.items()},
            "labels": labels,
            "words": self.words_key(),
        }

        def write(target: Path) -> dict[str, Any]:
            if kind == "images":
                return write_images(target, lambda: self._rows(folders), labels)
            if self.model == "mlp":
                columns = self._columns(folders)
                return write_numbers(target, lambda: self._rows(folders), labels, columns)
            return write_texts(target, lambda: self._rows(folders), labels, self.vocabulary_of)

        return prepare_arrays("silos", key, write)

    def _split(
        self, client: int, rows: Mapping[str, Tensor], seed: int, folders: Folders
    ) -> SiloSplit:
        split, name = split_silo(client, rows, self.evaluate_on, self.test_share), folders[client]
        train, kept = hold_out(len(split.train), self.holdout, seed, client, f"silo {name.name}")
        return replace(split, train=split.train[train], kept=split.train[kept])

    def _splits(self, arrays: PreparedArrays, folders: Folders, seed: int) -> dict[int, SiloSplit]:
        found = {
            client: self._split(client, rows, seed, folders)
            for client, rows in rows_by_silo(arrays, list(folders)).items()
        }
        if len({split.own_file for split in found.values()}) > 1:
            raise EpisodeError(
                f"Some silos of {self.data} have a {self.evaluate_on} file and some have not: "
                "give one to all, or to none."
            )
        return found

    def _data(
        self, arrays: PreparedArrays, folders: Folders, seed: int, share: Share
    ) -> ClassificationData:
        at_site, scaling = "start" in share.agreed, share.agreed.get("scaling")
        splits = self._splits(arrays, folders, seed)
        partition = partition_of(arrays, [folder.name for folder in folders.values()], splits)
        if self.model == "mlp" and scaling is None:
            own = [moments_of(arrays["train-rows"][split.train]) for split in splits.values()]
            scaling = scaling_of(arrays.info["columns"], own)
        own_file = next(iter(splits.values())).own_file
        train = self._dataset(arrays, "train", scaling)
        held_out = self._dataset(arrays, self.evaluate_on, scaling) if own_file else train
        blocks = own_blocks({n: split.held_out for n, split in splits.items()}, len(folders))
        if not at_site:  # else the labels of all sites have been compared
            rows = torch.cat([block.rows for block in blocks])
            check_trained(self.evaluate_on, held_out.labels[rows], partition)
        counts = self.label_counts(partition, seed)
        evaluated = [
            train.select(split.kept) if self.holdout else held_out.select(split.held_out)
            for split in splits.values()
        ]
        data = ClassificationData.of(train, partition, Split(held_out, blocks), counts)
        return replace(data, own=dict(enumerate(evaluated)))

    def _dataset(
        self, arrays: PreparedArrays, split: str, scaling: Scaling | None
    ) -> LabelledDataset:
        if scaling is not None:
            return dataset_of(arrays, split, scaling)
        if self.model in ARCHITECTURES:
            files = [Path(f) for f in arrays.info["files"][split]]
            return ImageFiles(files, arrays[f"{split}-labels"], self.image_size)
        return Texts.from_prepared(arrays, split, 1)

    def _make_model(self, vectors: Tensor | None, rows: int, classes: int) -> nn.Module:
        if self.model in ARCHITECTURES:
            large = self.image_size >= LARGE
            return ResNet(self.model, classes, large=large, norm=self.norm, width=self.width)
        if self.model == "mlp":
            return MLP(rows, self.hidden, self.layers, classes)
        words = nn.Embedding(rows, self.vector_size) if vectors is None else frozen_words(vectors)
        return TextClassifier(
            words, self.hidden, self.layers, classes, self.model,  # type: ignore[arg-type]
            self.bidirectional, self.pooling,
        )  # fmt: skip
