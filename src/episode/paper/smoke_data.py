"""Made-up data in the official formats, for scale `smoke`: enough to show that recipes run."""

from __future__ import annotations

import csv
import io
import json
import pickle
from pathlib import Path

import numpy as np

from episode.data.storage import make_folder
from episode.errors import EpisodeError

FORMAT = 1
"""To be raised when the made-up data change, so that they are written again."""
TELLING = (("good", "great"), ("the", "day"), ("bad", "awful"))
"""Words that give the label away, for each of three labels."""
FILLING = ("a", "film", "was", "this", "man", "dog", "they", "we")
WORDS = (*(w for words in TELLING for w in words), *FILLING, "<s>", "</s>", ".")
LABELS = ("entailment", "neutral", "contradiction")


def made_up_data(name: str, folder: Path) -> Path:
    """Write made-up data of a dataset unless they exist, and return their folder, or GloVe file."""
    target = folder / f"{name}-{FORMAT}"
    if not target.exists():
        make_folder(target, WRITERS[name])
    return target / "vectors.txt" if name == "glove" else target


def _text(rng: np.random.Generator, telling: tuple[str, ...]) -> str:
    words = [*rng.choice(FILLING, rng.integers(2, 6)), rng.choice(telling)]
    return " ".join(rng.permutation(words)) + "."


def _glove(folder: Path) -> None:
    rng = np.random.default_rng(0)
    lines = [f"{w} {' '.join(f'{v:.4f}' for v in rng.normal(size=8))}\n" for w in WORDS]
    (folder / "vectors.txt").write_text("".join(lines))


def _snli(folder: Path) -> None:
    rng = np.random.default_rng(1)
    for split, count in (("train", 480), ("dev", 90), ("test", 90)):
        lines = []
        for k in range(count):
            pair = {"sentence1": _text(rng, TELLING[0]), "sentence2": _text(rng, TELLING[k % 3])}
            lines.append(json.dumps({"gold_label": LABELS[k % 3], **pair}) + "\n")
        (folder / f"snli_1.0_{split}.jsonl").write_text("".join(lines))


def _sentiment140(folder: Path) -> None:
    rng = np.random.default_rng(2)
    rows = []
    for user in range(80):
        for k in range(5):
            positive = rng.random() < user / 80
            text = _text(rng, TELLING[0] if positive else TELLING[2])
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
        raise EpisodeError("Images need pillow: pip install 'episode-fl[data]'.") from None
    rng = np.random.default_rng(4)
    for split, count in (("train", 24), ("val", 4)):
        for k in range(4):
            place = folder / split / f"n{k:08d}"
            place.mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 90, (20, 20, 3), dtype=np.uint8)
                pixels[..., k % 3] += np.uint8(60 + 60 * (k // 3))
                Image.fromarray(pixels).save(place / f"{i}.JPEG")


WRITERS = {
    "glove": _glove, "snli": _snli, "sentiment140": _sentiment140, "cifar10": _cifar10,
    "imagenet": _imagenet,
}  # fmt: skip
