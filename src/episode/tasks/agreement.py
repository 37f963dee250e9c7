"""What sites tell a server about their data before round 0, and what they then agree on.

Label names, counts, checksums, and means of numeric columns: never rows. docs/flower.md lists all
of it under privacy.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from episode.data.batches import LabelledDataset
from episode.data.storage import fingerprint, prepare_arrays
from episode.data.word_vectors import describe_vectors, require_vectors
from episode.errors import EpisodeError
from episode.results.store import LabelCounts
from episode.tasks.classification import ClassificationData
from episode.tasks.evaluation import Split

Facts = Mapping[str, Any]
"""What one site has told, as JSON values."""


def require_equal(facts: Mapping[int, Facts], names: Mapping[str, str]) -> None:
    """Refuse sites that differ in something that must be the same everywhere.

    Args:
        facts: What each site has told.
        names: The facts that must be equal, and what each means.

    Raises:
        EpisodeError: Names the site that differs, what it has, and what the others have.
    """
    for key, meaning in names.items():
        values = {client: json.dumps(fact.get(key)) for client, fact in facts.items()}
        found = list(values.values())
        usual = max(sorted(set(found)), key=found.count)
        for client, value in sorted(values.items()):
            if value != usual:
                others = "site" if len(facts) == 2 else "sites"
                raise EpisodeError(
                    f"Site {site_name(client, facts)} has {_short(value)} for {meaning}, and the "
                    f"other {others} {_short(usual)}: all must be the same."
                )


def site_name(client: int, facts: Mapping[int, Facts]) -> str:
    """Return a site's number, with its name if it has told one."""
    name = facts[client].get("name")
    return f"{client} ({name})" if name else str(client)


def agreement(
    labels: Sequence[str], sizes: Sequence[int], facts: Mapping[int, Facts]
) -> dict[str, Any]:
    """Return what the server knows once all sites agree; `told` is what it tells a site of it."""
    clients = range(len(sizes))
    return {
        "labels": list(labels),
        "sizes": list(sizes),
        "names": [str(facts[c].get("name") or c) if c in facts else str(c) for c in clients],
        "counts": [dict(facts[c].get("counts", {})) if c in facts else {} for c in clients],
        "words": next((fact["words"] for fact in facts.values() if "words" in fact), None),
    }


def told(agreed: Mapping[str, Any], client: int) -> dict[str, Any]:
    """Return what a site is told: labels, and where its examples are in the list of all."""
    sizes = agreed["sizes"]
    return {
        "labels": agreed["labels"],
        "words": agreed["words"],
        "num_clients": len(sizes),
        "start": sum(sizes[:client]),
        "total": sum(sizes),
    }


def server_data(
    agreed: Mapping[str, Any], summary: str, seed: int, evaluates_own: bool
) -> ClassificationData:
    """Return the data of a server that has none; it knows who has which labels.

    Args:
        agreed: What the sites have agreed on.
        summary: How the data are distributed, in words.
        seed: Random seed of the run.
        evaluates_own: Whether each site evaluates the model on examples of its own.
    """
    counts = LabelCounts(
        ", ".join(filter(None, [summary, f"seed {seed}"])),
        agreed["labels"],
        agreed["names"],
        [[own.get(label, 0) for label in agreed["labels"]] for own in agreed["counts"]],
    )
    sizes, nothing = agreed["sizes"], Split(None, ())
    own: dict[int, LabelledDataset] | None = {} if evaluates_own else None
    return ClassificationData(None, {}, {}, len(sizes), sum(sizes), nothing, counts, own)


def count_by_label(labels: Tensor, names: Sequence[str]) -> dict[str, int]:
    """Return how many examples there are of each label that occurs."""
    counts = torch.bincount(labels.long(), minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count}


def absent_vectors(words: Mapping[str, Any]) -> Tensor:
    """Return a place for word vectors that are frozen, and only at the sites."""
    return torch.zeros(1, int(words["size"]))


def vectors_facts(path: Path) -> dict[str, Any]:
    """Return the checksum of a file of word vectors, and how long a vector is."""
    file = require_vectors(path)
    key = {"file": path.name, **fingerprint(file)}
    found = prepare_arrays("vectors", key, lambda _: describe_vectors(path))
    return {name: found.info[name] for name in ("checksum", "size")}


def checksum(content: bytes) -> str:
    """Return a short hash, to compare files without sending them."""
    return hashlib.sha256(content).hexdigest()[:16]


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "..."
