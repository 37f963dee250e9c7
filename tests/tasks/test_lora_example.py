"""The comparison of adapters over silos, on a handful of made-up sentences."""

from __future__ import annotations

import gzip
import json
import random
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.long


def sentences(size: int, seed: int) -> list[tuple[str, str, str]]:
    draw = random.Random(seed)
    labels = ["entailment", "neutral", "contradiction"]
    words = [f"{a}{b}" for a in "bcdfgh" for b in ("at", "on", "it", "ud")]
    return [
        (" ".join(draw.choices(words, k=5)), " ".join(draw.choices(words, k=3)), labels[k % 3])
        for k in range(size)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "multinli").mkdir(parents=True)
    (folder / "snli_1.0").mkdir()
    lines = ["sentence1\tsentence2\tlabel\tgenre"]
    lines += ["\t".join([*row, "travel"]) for row in sentences(60, 0)]
    with gzip.open(folder / "multinli" / "mnli_train.tsv.gz", "wt") as file:
        file.write("\n".join(lines) + "\n")
    for seed, split in enumerate(("train", "dev", "test")):
        names = ("sentence1", "sentence2", "gold_label")
        rows = [dict(zip(names, row, strict=True)) for row in sentences(60, seed)]
        rows.append({**rows[0], "gold_label": "-"})  # nobody agreed on it
        text = "\n".join(map(json.dumps, rows))
        (folder / "snli_1.0" / f"snli_1.0_{split}.jsonl").write_text(text)
    return folder


def test_the_example_compares_at_equal_exchanges_and_goes_on_where_it_was(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(EXAMPLES), *sys.path])
    from lora_silos import Sizes, main

    sizes = Sizes(
        words=120, width=16, longest=16, public_steps=2, silos=3, rank=2, batch=4, local_steps=2,
        exchanges=4, evaluated=20, seeds=2,
    )  # fmt: skip
    command = [str(data), "--folder", str(tmp_path / "runs"), "--algorithms", "fedadam"]
    command += ["pooled", "episode"]
    printed = []
    for _ in range(2):
        main(command, sizes)
        printed.append(capsys.readouterr().out)
    rows = [line.split(" | ") for line in printed[0].splitlines()[-3:]]
    assert [(row[0], *row[4:6], row[7]) for row in rows] == [
        ("| fedadam", "4", "4", "24 |"),
        ("| pooled", "4", "4", "24 |"),
        ("| episode", "2", "4", "18 |"),
    ]
    assert printed[0].splitlines()[-3:] == printed[1].splitlines()[-3:]
    assert "public step 0" in printed[0]
    assert "public step 0" not in printed[1]
    main([*command[:-2], "--freeze-a"], sizes)
    assert "public step 0" not in capsys.readouterr().out
    place = "3-silos-0-similar-2-steps-4-exchanges"
    both, frozen = (tmp_path / "runs" / name / place for name in ("both", "frozen_a"))
    name = sorted(p.name for p in both.iterdir() if p.name.startswith("fedadam-dev"))[0]
    sizes_of = [(folder / name / "model.safetensors").stat().st_size for folder in (both, frozen)]
    assert sizes_of[1] < sizes_of[0]
