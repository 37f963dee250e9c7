"""Small datasets in official formats, written by the tests."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
import random
from pathlib import Path

import numpy as np

LABELS = ("entailment", "neutral", "contradiction")
POSITIVE, NEGATIVE = ("good", "great", "happy"), ("bad", "awful", "sad")
FILLING = ("the", "a", "film", "day", "was", "this", "man", "dog")
WORDS = (*POSITIVE, *NEGATIVE, *FILLING, "<s>", "</s>", ".", ",")


def sentence(chosen: random.Random, words: tuple[str, ...]) -> str:
    text = [*chosen.choices(FILLING, k=chosen.randint(2, 6)), chosen.choice(words)]
    chosen.shuffle(text)
    return " ".join(text) + "."


def write_vectors(path: Path, dimension: int = 8) -> Path:
    rng = np.random.default_rng(0)
    lines = [f"{w} {' '.join(f'{v:.4f}' for v in rng.normal(size=dimension))}\n" for w in WORDS]
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(lines)
    return path


def write_snli(folder: Path, train: int = 240) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("dev", 60), ("test", 60)):
        chosen = random.Random(split)
        rows = []
        for k in range(count):
            label = k % 3
            words = (POSITIVE, FILLING, NEGATIVE)[label]
            rows.append(
                {
                    "gold_label": "-" if k == 7 else LABELS[label],
                    "sentence1": sentence(chosen, POSITIVE),
                    "sentence2": sentence(chosen, words),
                    "pairID": str(k),
                }
            )
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / f"snli_1.0_{split}.jsonl").write_text(text)
    return folder


def write_sentiment140(folder: Path, users: int = 60) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    chosen = random.Random(0)
    rows = []
    for user in range(users):
        for k in range(1 if user == 0 else 5):
            positive = chosen.random() < user / users
            text = sentence(chosen, POSITIVE if positive else NEGATIVE) + " caf\xe9 &quot;x&quot;"
            rows.append([4 if positive else 0, k, "date", "NO_QUERY", f"user{user}", text])
    manual = [[p, 1, "date", "q", "someone", "good day"] for p in (4, 0, 2)]
    for name, content in (
        ("training.1600000.processed.noemoticon.csv", rows),
        ("testdata.manual.2009.06.14.csv", manual),
    ):
        with (folder / name).open("w", encoding="latin-1", newline="") as file:
            csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(content)
    return folder


def write_cifar10(folder: Path, per_batch: int = 40) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for name in (*[f"data_batch_{k}" for k in range(1, 6)], "test_batch"):
        labels = [k % 10 for k in range(per_batch)]
        data = rng.integers(0, 256, (per_batch, 3072), dtype=np.uint8)
        data[:, :100] = np.array(labels, np.uint8)[:, None] * 25
        with (folder / name).open("wb") as file:
            pickle.dump({b"data": data, b"labels": labels}, file, protocol=2)
    return folder


def write_imagenet(folder: Path, per_class: int = 12) -> Path:
    from PIL import Image

    rng = np.random.default_rng(0)
    for split, count in (("train", per_class), ("val", 3)):
        for k, wnid in enumerate(("n01", "n02", "n03")):
            place = folder / split / wnid
            place.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                pixels = rng.integers(0, 90, (20 + i, 24, 3), dtype=np.uint8)
                pixels[..., k] += 150
                image = Image.fromarray(pixels).convert("L" if i == 1 else "RGB")
                image.save(place / f"{wnid}_{i}.JPEG")
    return folder
