"""Tune adapters of a small transformer over silos that are sorted by label, on a frozen base.

    python examples/lora_silos.py data                # data/multinli and data/snli_1.0
    python examples/lora_silos.py data --freeze-a
    python examples/lora_silos.py data --silos 6 --exchanges 200

A BERT of two layers learns its WordPiece vocabulary and natural language inference on MultiNLI, the
public data. Then LoRA adapters and the classifier are trained on SNLI, which lies in silos sorted
by label. Each algorithm is tuned with two trials on the validation split with seed 0, and runs
on the test split with three other seeds; all have the same number of exchanges.

Clients send A and B, and mean(BA) ≠ mean(B)·mean(A): the averaged adapter is not the average of
the adapters. With `--freeze-a` all clients keep the same random A, and then it is.

Finished runs are read back, so a stopped script goes on where it was.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gzip
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import BertWordPieceTokenizer
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

import episode

LABELS = ("entailment", "neutral", "contradiction")
ALGORITHMS = ("fedavg", "celgc", "fedadam", "diloco", "episode", "episode_trust")
Example = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    words: int = 4000
    width: int = 64
    longest: int = 40
    public_steps: int = 3000
    silos: int = 3
    rank: int = 8
    batch: int = 16
    local_steps: int = 6
    exchanges: int = 16
    evaluated: int = 1000
    seeds: int = 3


def multinli(data: Path) -> list[tuple[str, str, str]]:
    """Return premises, hypotheses and labels of the public data."""
    with gzip.open(data / "multinli" / "mnli_train.tsv.gz", "rt", encoding="utf-8") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(r["sentence1"], r["sentence2"], r["label"]) for r in rows if r["label"] in LABELS]


def snli(data: Path, split: str) -> list[tuple[str, str, str]]:
    """Return premises, hypotheses and labels of a split of SNLI."""
    lines = (data / "snli_1.0" / f"snli_1.0_{split}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    found = [(r["sentence1"], r["sentence2"], r["gold_label"]) for r in rows]
    return [row for row in found if row[2] in LABELS]


def tokenizer_of(folder: Path, texts: Iterable[str], sizes: Sizes) -> PreTrainedTokenizerFast:
    """Return the tokenizer whose vocabulary was learned from these texts."""
    path = folder / "tokenizer.json"
    if not path.exists():
        learned = BertWordPieceTokenizer(lowercase=True)
        learned.train_from_iterator(texts, vocab_size=sizes.words, show_progress=False)
        learned.save(str(path))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    return PreTrainedTokenizerFast(
        tokenizer_file=str(path), model_max_length=sizes.longest, **special,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )  # fmt: skip


def encoded(
    tokenizer: PreTrainedTokenizerFast, rows: Sequence[tuple[str, str, str]]
) -> list[Example]:
    """Return examples as token numbers; they are padded batch by batch."""
    first, second, labels = zip(*rows, strict=True)
    inputs = tokenizer(list(first), list(second), truncation=True)
    return [
        {**{name: values[k] for name, values in inputs.items()}, "labels": LABELS.index(label)}
        for k, label in enumerate(labels)
    ]


def base_of(
    folder: Path, collate: DataCollatorWithPadding, public: Sequence[tuple[str, str, str]], s: Sizes
) -> BertForSequenceClassification:
    """Return the base model, trained on the public data the first time."""
    path = folder / "base"
    if not path.exists():
        torch.manual_seed(0)
        model = BertForSequenceClassification(
            BertConfig(
                vocab_size=len(collate.tokenizer), hidden_size=s.width, num_hidden_layers=2,
                num_attention_heads=4, intermediate_size=2 * s.width, num_labels=len(LABELS),
                max_position_embeddings=s.longest,
            )
        )  # fmt: skip
        examples = encoded(collate.tokenizer, public)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
        last = s.public_steps
        rate = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda k: min((k + 1) / 200, (last - k) / last)
        )
        for step in range(last):
            chosen = torch.randint(len(examples), (32,)).tolist()
            optimizer.zero_grad()
            found = loss(model, collate([examples[k] for k in chosen]))
            found.backward()
            optimizer.step()
            rate.step()
            if step % 500 == 0:
                print(f"public step {step}: loss {found.item():.3f}", flush=True)
        model.save_pretrained(path)
    return BertForSequenceClassification.from_pretrained(path)


def adapted(base: nn.Module, rank: int, freeze_a: bool) -> nn.Module:
    """Return the base with adapters beside queries and values; they and the head are trained."""
    torch.manual_seed(1)
    config = LoraConfig(task_type="SEQ_CLS", r=rank, target_modules=["query", "value"])
    model = get_peft_model(copy.deepcopy(base), config)  # which would change the base itself
    for name, p in model.named_parameters():
        if freeze_a and "lora_A" in name:
            p.requires_grad_(False)
    return model


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean cross entropy of a batch."""
    found: Tensor = model(**batch).loss
    return found


def settings_of(name: str) -> list[dict[str, Any]]:
    """Return what is tried for an algorithm: two settings for each."""
    if name == "diloco":
        return [{"eta": eta} for eta in (0.0005, 0.002)]
    if name == "fedadam":
        return [{"eta": 0.05, "rate": rate} for rate in (0.001, 0.005)]
    if name == "fedavg":
        return [{"eta": eta} for eta in (0.05, 0.2)]
    return [{"eta": eta, "gamma": 0.5 * eta} for eta in (0.05, 0.2)]


class Comparison:
    """All runs, in one folder."""

    def __init__(self, data: Path, folder: Path, sizes: Sizes, freeze_a: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.sizes, self.freeze_a = folder, sizes, freeze_a
        public = multinli(data)
        texts = (text for first, second, _ in public for text in (first, second))
        self.collate = DataCollatorWithPadding(tokenizer_of(folder, texts, sizes))
        self.base = base_of(folder, self.collate, public, sizes)
        tokenizer = self.collate.tokenizer
        train = encoded(tokenizer, snli(data, "train"))
        labels = torch.tensor([example["labels"] for example in train])
        parts = episode.by_similarity(labels, sizes.silos, similarity=0, seed=0)
        self.silos = [[train[k] for k in part.tolist()] for part in parts]
        self.held_out = {
            split: self._batches(encoded(tokenizer, snli(data, split)[: sizes.evaluated]))
            for split in ("dev", "test")
        }

    def accuracy(self, model: nn.Module, split: str) -> float:
        """Return the share of right answers on a split."""
        right = [
            (model(**{k: v for k, v in b.items() if k != "labels"}).logits.argmax(1) == b["labels"])
            for b in self.held_out[split]
        ]
        return torch.cat(right).float().mean().item()

    def run(self, name: str, split: str, seed: int, setting: Mapping[str, float]) -> episode.Run:
        """Play or read one run."""
        given = dict(setting)
        options = {"server": {"rate": given.pop("rate")}} if "rate" in given else {}
        algorithm = episode.Algorithm.named(name, **options)
        each = 2 if algorithm.correction.probes else 1
        s = self.sizes
        label = "-".join([name, split, str(seed), *(f"{v:g}" for v in setting.values())])
        place = self.folder / f"{s.silos}-silos-{s.local_steps}-steps-{s.exchanges}-exchanges"
        return episode.fit(
            adapted(self.base, s.rank, self.freeze_a), self.silos, loss, **given,
            algorithm=algorithm, local_steps=s.local_steps, seed=seed,
            rounds=s.exchanges // each, batch_size=s.batch, collate=self.collate,
            evaluate=lambda m: {"accuracy": self.accuracy(m, split)}, evaluate_every=0,
            folder=place / label,
        )  # fmt: skip

    def row(self, name: str) -> str:
        """Tune an algorithm, play its seeds, and return its row of the table."""
        trials = {score(self.run(name, "dev", 0, s)): s for s in settings_of(name)}
        best = trials[max(trials)]
        runs = [self.run(name, "test", seed + 1, best) for seed in range(self.sizes.seeds)]
        scores, last = list(map(score, runs)), runs[-1].summary
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        megabytes = (last["bytes_up"] + last["bytes_down"]) / 1e6
        chosen = ", ".join(f"{k} {v:g}" for k, v in best.items())
        return (
            f"| {name} | {chosen} | {statistics.mean(scores):.3f} ± {spread:.3f} "
            f"| {last['rounds']} | {last['exchanges']} | {megabytes:.1f} | {last['gradients']:,} |"
        )

    def _batches(self, examples: list[Example]) -> list[Any]:
        ordered = sorted(examples, key=lambda example: len(example["input_ids"]))
        return [self.collate(ordered[k : k + 200]) for k in range(0, len(ordered), 200)]


def score(run: episode.Run) -> float:
    """Return a run's accuracy; 0 if it diverged."""
    return float(run.summary["metrics"].get("accuracy", 0.0)) if run.status == "finished" else 0.0


def main(arguments: Sequence[str] | None = None, sizes: Sizes | None = None) -> None:
    """Compare the algorithms and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with multinli and snli_1.0")
    parser.add_argument("--folder", type=Path, default=Path("runs/lora"))
    parser.add_argument("--algorithms", nargs="+", default=ALGORITHMS)
    parser.add_argument("--freeze-a", action="store_true", help="all keep the same random A")
    sizes = sizes or Sizes()
    for name in ("silos", "local_steps", "exchanges", "seeds"):
        option = "--" + name.replace("_", "-")
        parser.add_argument(option, type=int, default=getattr(sizes, name))
    chosen = parser.parse_args(arguments)
    sizes = replace(sizes, **{n: v for n, v in vars(chosen).items() if n in vars(sizes)})
    folder = chosen.folder / ("frozen_a" if chosen.freeze_a else "both")
    comparison = Comparison(chosen.data, folder, sizes, chosen.freeze_a)
    with torch.no_grad():
        before = comparison.accuracy(comparison.base.eval(), "test")
    print(f"The base without adapters: {before:.3f}\n")
    print("| algorithm | setting | test accuracy | rounds | exchanges | MB | gradients |")
    print("|---|---|---|---|---|---|---|")
    for name in chosen.algorithms:
        print(comparison.row(name), flush=True)


if __name__ == "__main__":
    main()
