"""Tune adapters of a small transformer over silos that are sorted by label, on a frozen base.

    python examples/lora_silos.py data                # data/multinli and data/snli_1.0
    python examples/lora_silos.py data --freeze-a

A BERT of two layers learns its WordPiece vocabulary, word vectors and natural language inference on
MultiNLI, the public data. Then LoRA adapters and the head are trained on SNLI, which lies in silos
sorted by label. Each algorithm is tuned with three trials on the validation split with seed 0, and
runs on the test split with three other seeds; all have the same number of exchanges. "pooled" is
SGD with all rows in one place and as many gradients as FedAvg has. Finished runs are read back, so
a stopped script goes on where it was.

Clients send A and B, and mean(BA) ≠ mean(B)·mean(A): the averaged adapter is not the average of
the adapters. With `--freeze-a` all clients keep the same random A, and then it is.
"""

from __future__ import annotations

import argparse
import copy
import csv
import gzip
import json
import statistics
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from tokenizers import BertWordPieceTokenizer
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import BertConfig, BertModel, DataCollatorWithPadding, PreTrainedTokenizerFast

import episode

LABELS = ("entailment", "neutral", "contradiction")
UNCLIPPED = [{"eta": eta} for eta in (0.03, 0.1, 0.2)]
CLIPPED = [{"eta": eta, "gamma": gamma} for eta, gamma in ((0.1, 0.1), (0.3, 0.1), (0.3, 0.3))]
TRIALS: dict[str, list[dict[str, float]]] = {  # as many for each
    **dict.fromkeys(("pooled", "fedavg"), UNCLIPPED),
    **dict.fromkeys(("episode", "episode_trust", "celgc"), CLIPPED),
    "fedadam": [{"eta": 0.1, "rate": rate} for rate in (0.001, 0.003, 0.01)],
    "diloco": [{"eta": eta} for eta in (0.0001, 0.0003, 0.001)],
}
Example = dict[str, Any]
Rows = Sequence[tuple[str, str, str]]
warnings.filterwarnings("ignore", ".*is_gradient_checkpointing.*")


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    words: int = 4000
    width: int = 64
    longest: int = 48
    public_steps: int = 600
    silos: int = 3
    similarity: int = 0
    rank: int = 8
    batch: int = 16
    local_steps: int = 4
    exchanges: int = 40
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
    chosen = [r for r in rows if r["gold_label"] in LABELS]
    return [(r["sentence1"], r["sentence2"], r["gold_label"]) for r in chosen]


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


def encoded(tokenizer: PreTrainedTokenizerFast, rows: Rows) -> list[Example]:
    """Return examples as token numbers; they are padded batch by batch."""
    first, second, labels = zip(*rows, strict=True)
    inputs = tokenizer(list(first), list(second), truncation=True)
    return [
        {**{name: values[k] for name, values in inputs.items()}, "labels": LABELS.index(label)}
        for k, label in enumerate(labels)
    ]


class Pairs(nn.Module):
    """A BERT that reads two sentences at once, and a head that compares their mean vectors."""

    def __init__(self, words: int, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        config = BertConfig(
            vocab_size=words, hidden_size=width, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=2 * width, max_position_embeddings=sizes.longest,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )  # fmt: skip
        self.encoder = BertModel(config, add_pooling_layer=False)
        self.head = nn.Linear(4 * width, len(LABELS))

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Return a score for each label."""
        h = self.encoder(input_ids, attention_mask, token_type_ids).last_hidden_state
        second = attention_mask * token_type_ids
        u, v = (
            (h * words[..., None]).sum(1) / words.sum(1, keepdim=True).clamp(min=1)
            for words in (attention_mask - second, second)
        )
        return self.head(torch.cat([u, v, (u - v).abs(), u * v], dim=1))


def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the mean cross entropy of a batch."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    return F.cross_entropy(model(**inputs), batch["labels"])


def word_vectors(tokenizer: PreTrainedTokenizerFast, texts: Iterable[str], width: int) -> Tensor:
    """Return vectors that are alike for words with like neighbours: factors of their PPMI."""
    n, pad = len(tokenizer), tokenizer.pad_token_id
    numbers = tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
    ids = torch.tensor([k for text in numbers for k in (*text, pad, pad, pad, pad)])
    counts = torch.zeros(n, n)
    for k in range(1, 5):
        counts.index_put_((ids[:-k], ids[k:]), torch.tensor(1 / k), accumulate=True)
    counts[pad], counts[:, pad] = 0, 0
    counts = counts + counts.T
    often, context = counts.sum(1), counts.sum(1) ** 0.75
    ratio = counts * context.sum() / (often[:, None] * context + 1e-9)
    left, sizes, _ = torch.svd_lowrank(ratio.clamp(min=1).log(), q=width, niter=4)
    return 0.3 * width**0.5 * F.normalize(left * sizes.sqrt())


def base_of(folder: Path, collate: DataCollatorWithPadding, public: Rows, sizes: Sizes) -> Pairs:
    """Return the base model, trained on the public data the first time."""
    path, tokenizer, last = folder / "base.safetensors", collate.tokenizer, sizes.public_steps
    torch.manual_seed(0)
    model = Pairs(len(tokenizer), sizes)
    if path.exists():
        model.load_state_dict(load_file(path))
        return model
    texts = (text for first, second, _ in public for text in (first, second))
    start = word_vectors(tokenizer, texts, sizes.width)
    model.encoder.get_input_embeddings().weight.data.copy_(start)
    examples = encoded(tokenizer, public)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    for step in range(last):
        optimizer.param_groups[0]["lr"] = 1e-3 * min((step + 1) / 100, (last - step) / last)
        chosen = torch.randint(len(examples), (32,)).tolist()
        optimizer.zero_grad()
        found = loss(model, collate([examples[k] for k in chosen]))
        found.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"public step {step}: loss {found.item():.3f}", flush=True)
    save_file(model.state_dict(), path)
    return model


def adapted(base: nn.Module, rank: int, freeze_a: bool) -> nn.Module:
    """Return the base with adapters beside its matrices; they and the head are trained."""
    torch.manual_seed(1)
    places = {"target_modules": ["query", "value", "dense"], "modules_to_save": ["head"]}
    config = LoraConfig(r=rank, lora_alpha=2 * rank, **places)
    model = get_peft_model(copy.deepcopy(base), config)  # which would change the base itself
    for name, p in model.named_parameters():
        if freeze_a and "lora_A" in name:
            p.requires_grad_(False)
    return model


class Comparison:
    """All runs, in one folder."""

    def __init__(self, data: Path, folder: Path, sizes: Sizes, freeze_a: bool) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.sizes, self.freeze_a = sizes, freeze_a
        self.folder = folder / ("frozen_a" if freeze_a else "both") / (
            f"{sizes.silos}-silos-{sizes.similarity}-similar-"
            f"{sizes.local_steps}-steps-{sizes.exchanges}-exchanges"
        )  # fmt: skip
        public = multinli(data)
        texts = (text for first, second, _ in public for text in (first, second))
        self.collate = DataCollatorWithPadding(tokenizer_of(folder, texts, sizes))
        self.base = base_of(folder, self.collate, public, sizes)
        tokenizer = self.collate.tokenizer
        train = encoded(tokenizer, snli(data, "train"))
        labels = torch.tensor([example["labels"] for example in train])
        parts = episode.by_similarity(labels, sizes.silos, sizes.similarity, seed=0)
        self.silos = [[train[k] for k in part.tolist()] for part in parts]
        self.held_out = {
            split: self._batches(encoded(tokenizer, snli(data, split)[: sizes.evaluated]))
            for split in ("dev", "test")
        }

    @torch.no_grad()
    def accuracy(self, model: nn.Module, split: str) -> float:
        """Return the share of right answers on a split."""
        right = [
            model(**{k: v for k, v in b.items() if k != "labels"}).argmax(1) == b["labels"]
            for b in self.held_out[split]
        ]
        return torch.cat(right).float().mean().item()

    def run(self, name: str, split: str, seed: int, setting: Mapping[str, float]) -> episode.Run:
        """Play or read one run."""
        given, s = dict(setting), self.sizes
        options = {"server": {"rate": given.pop("rate")}} if "rate" in given else {}
        pooled = name == "pooled"
        algorithm = episode.Algorithm.named("fedavg" if pooled else name, **options)
        label = "-".join([name, split, str(seed), *(f"{v:g}" for v in setting.values())])
        return episode.fit(
            adapted(self.base, s.rank, self.freeze_a),
            [[e for silo in self.silos for e in silo]] if pooled else self.silos, loss, **given,
            algorithm=algorithm, local_steps=s.local_steps * (s.silos if pooled else 1), seed=seed,
            rounds=s.exchanges // (2 if algorithm.correction.probes else 1), batch_size=s.batch,
            collate=self.collate, evaluate=lambda m: {"accuracy": self.accuracy(m, split)},
            evaluate_every=0, folder=self.folder / label,
        )  # fmt: skip

    def tuned(self, name: str) -> tuple[float, dict[str, float]]:
        """Return an algorithm's best accuracy on the validation split, and its setting."""
        trials = []
        for setting in TRIALS[name]:
            trials.append((score(self.run(name, "dev", 0, setting)), setting))
            print(f"{name} {setting}: {trials[-1][0]:.3f} on dev", flush=True)
        return max(trials, key=lambda trial: trial[0])

    def row(self, name: str, validated: float, best: Mapping[str, float]) -> str:
        """Play an algorithm's seeds on the test split and return its row of the table."""
        runs = [self.run(name, "test", seed + 1, best) for seed in range(self.sizes.seeds)]
        scores, last = list(map(score, runs)), runs[-1].summary
        spread = statistics.stdev(scores) if len(scores) > 1 else 0.0
        megabytes = (last["bytes_up"] + last["bytes_down"]) / 1e6
        chosen = ", ".join(f"{k} {v:g}" for k, v in best.items())
        return (
            f"| {name} | {chosen} | {validated:.3f} | {statistics.mean(scores):.3f} ± {spread:.3f} "
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
    parser.add_argument("--algorithms", nargs="+", default=list(TRIALS), choices=TRIALS)
    parser.add_argument("--freeze-a", action="store_true", help="all keep the same random A")
    sizes = sizes or Sizes()
    for name in ("silos", "similarity", "local_steps", "exchanges", "seeds"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(sizes, name))
    chosen = parser.parse_args(arguments)
    for part in ("multinli/mnli_train.tsv.gz", "snli_1.0/snli_1.0_train.jsonl"):
        if not (chosen.data / part).is_file():
            parser.error(f"there is no {part} in {chosen.data}")
    sizes = replace(sizes, **{n: v for n, v in vars(chosen).items() if n in vars(sizes)})
    comparison = Comparison(chosen.data, chosen.folder, sizes, chosen.freeze_a)
    base = [comparison.accuracy(comparison.base.eval(), split) for split in ("dev", "test")]
    tuned = {name: comparison.tuned(name) for name in chosen.algorithms}
    print("\n| algorithm | setting | dev | test accuracy | rounds | exchanges | MB | gradients |")
    print("|---|---|---|---|---|---|---|---|")
    print(f"| the base | | {base[0]:.3f} | {base[1]:.3f} | | | | |")
    for name in chosen.algorithms:
        print(comparison.row(name, *tuned[name]), flush=True)


if __name__ == "__main__":
    main()
