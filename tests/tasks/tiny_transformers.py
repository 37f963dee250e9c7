"""Small transformers with adapters, their tokenizer and data, made on the spot."""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

WORDS = ["[PAD]", "[UNK]", *(f"w{k}" for k in range(200))]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS), "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "intermediate_size": 128, "max_position_embeddings": 32,
}  # fmt: skip


def bert(seed: int = 0, **changes: Any) -> BertForSequenceClassification:
    torch.manual_seed(seed)
    return BertForSequenceClassification(BertConfig(**SIZES, num_labels=3, **changes))


def with_lora(base: nn.Module, rank: int = 4, seed: int = 1, **changes: Any) -> nn.Module:
    torch.manual_seed(seed)
    options = {"r": rank, "target_modules": ["query", "value"], **changes}
    return get_peft_model(base, LoraConfig(task_type="SEQ_CLS", **options))


def masked_lm() -> BertForMaskedLM:
    torch.manual_seed(0)
    return BertForMaskedLM(BertConfig(**SIZES))


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, num_key_value_heads=1))


def tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=32
    )


def collator() -> DataCollatorWithPadding:
    return DataCollatorWithPadding(tokenizer())


def silo(client: int, size: int = 24) -> list[dict[str, Any]]:
    """Return texts of different lengths, most of which have the client's own label and words."""
    g = torch.Generator().manual_seed(client)
    found = []
    for k in range(size):
        label = client % 3 if k % 4 else int(torch.randint(3, (1,), generator=g))
        words = torch.randint(60, (3 + k % 9,), generator=g) + 60 * label
        text = " ".join(f"w{word}" for word in words.tolist())
        found.append({**tokenizer()(text, truncation=True), "labels": label})
    return found


def loss(model: nn.Module, batch: Any) -> Tensor:
    found: Tensor = model(**batch).loss
    return found


def settings(**changes: Any) -> dict[str, Any]:
    chosen = {"eta": 0.5, "gamma": 0.2, "local_steps": 2, "rounds": 2, "batch_size": 8}
    return {**chosen, "collate": collator(), **changes}
