"""Made-up data in the official formats, for scale `smoke`: they prove that recipes run, no more."""

from __future__ import annotations

import csv
import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np

from episode.data.storage import make_folder
from episode.errors import EpisodeError

FORMAT = "stand-in-1"
SIGNS = (("good", "great"), ("the", "day"), ("bad", "awful"))
FILLING = ("a", "film", "was", "this", "man", "dog", "they", "we")
WORDS = (*(w for signs in SIGNS for w in signs), *FILLING, "<s>", "</s>", ".")
LABELS = ("entailment", "neutral", "contradiction")


def stand_in(name: str, folder: Path) -> Path:
    """The folder (for glove: the file) of made-up data of this name, written once."""
    target = folder / f"{FORMAT}-{name}"
    if not target.exists():
        make_folder(target, lambda place: WRITERS[name](place))
    return target / "vectors.txt" if name == "glove" else target


def _text(rng: np.random.Generator, signs: tuple[str, ...]) -> str:
    words = [*rng.choice(FILLING, rng.integers(2, 6)), rng.choice(signs)]
    return " ".join(rng.permutation(words)) + "."


def _glove(folder: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{w} {' '.join(f'{v:.4f}' for v in rng.normal(size=8))}\n" for w in WORDS]
    (folder / "vectors.txt").write_text("".join(lines))


def _snli(folder: Path) -> None:
    rng = np.random.default_rng(1)
    for split, count in (("train", 480), ("dev", 90), ("test", 90)):
        rows = [
            {
                "gold_label": LABELS[k % 3],
                "sentence1": _text(rng, SIGNS[0]),
                "sentence2": _text(rng, SIGNS[k % 3]),
            }
            for k in range(count)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"snli_1.0_{split}.jsonl").write_text(text)


def _sentiment140(folder: Path) -> None:
    rng = np.random.default_rng(2)
    rows = []
    for user in range(80):
        for k in range(5):
            positive = rng.random() < user / 80
            text = _text(rng, SIGNS[0] if positive else SIGNS[2])
            rows.append([4 if positive else 0, k, "date", "NO_QUERY", f"user{user}", text])
    files = {
        "training.1600000.processed.noemoticon.csv": rows,
        "testdata.manual.2009.06.14.csv": [[p, p, "d", "q", "a", "good bad"] for p in (4, 0)],
    }
    for name, content in files.items():
        buffer = io.StringIO()
        csv.writer(buffer, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(content)
        (folder / name).write_text(buffer.getvalue(), encoding="latin-1")


def _cifar10(folder: Path) -> None:
    rng = np.random.default_rng(3)
    for name in (*[f"data_batch_{k}" for k in range(1, 6)], "test_batch"):
        labels = [k % 10 for k in range(40)]
        data = rng.integers(0, 256, (40, 3072), dtype=np.uint8)
        data[:, :600] = np.array(labels, np.uint8)[:, None] * 25
        batch = {b"data": data, b"labels": labels}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


def _imagenet(folder: Path) -> None:
    try:
        from PIL import Image
    except ImportError:
        raise EpisodeError(
            "Images need pillow: pip install 'episode-fl[data]' -c constraints.txt."
        ) from None
    rng = np.random.default_rng(4)
    for split, count in (("train", 24), ("val", 4)):
        for k in range(4):
            place = folder / split / f"n{k:08d}"
            place.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 90, (20, 20, 3), dtype=np.uint8)
                pixels[..., k % 3] += np.uint8(60 + 60 * (k // 3))
                Image.fromarray(pixels).save(place / f"{i}.JPEG")


WRITERS: dict[str, Callable[[Path], None]] = {
    "glove": _glove,
    "snli": _snli,
    "sentiment140": _sentiment140,
    "cifar10": _cifar10,
    "imagenet": _imagenet,
}
