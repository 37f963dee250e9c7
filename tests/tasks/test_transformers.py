"""Models of Hugging Face: adapters on a frozen base, padded batches, tied weights, dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from tiny_transformers import (
    bert,
    collator,
    llama,
    loss,
    masked_lm,
    settings,
    silo,
    tokenizer,
    with_lora,
)
from torch import Tensor, nn
from transformers import BatchEncoding

import episode
from episode import EpisodeError
from episode.core.vectors import blocks_of
from episode.diagnosis.options import DiagnosisOptions
from episode.federation.protocols import Draw
from episode.tasks.neural import NeuralTask

pytestmark = pytest.mark.slow
SILOS = [silo(client) for client in range(3)]


def fit(model: nn.Module, **changes: Any) -> episode.Run:
    return episode.fit(model, SILOS, changes.pop("loss", loss), **settings(**changes))


def scores(model: nn.Module) -> Tensor:
    with torch.no_grad():
        batch = collator()([{k: v for k, v in e.items() if k != "labels"} for e in SILOS[0]])
        return model.eval()(**batch).logits


def trained_bytes(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.parameters() if p.requires_grad)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> episode.Run:
    return fit(with_lora(bert()), folder=tmp_path_factory.mktemp("lora") / "run")


def test_files_hold_the_adapter_and_not_the_base(run: episode.Run) -> None:
    assert run.folder is not None
    assert run.model is not None
    sizes = {p.name: p.stat().st_size for p in run.folder.rglob("*.safetensors")}
    assert sizes.keys() == {"model.safetensors", "state.safetensors"}
    assert max(sizes.values()) <= 3 * trained_bytes(run.model)
    assert sum(p.nbytes for p in run.model.parameters()) > 20 * trained_bytes(run.model)
    stored = load_file(run.folder / "model.safetensors")
    assert all("lora_" in name or "classifier" in name for name in stored)


def test_a_run_gives_the_full_model_back(run: episode.Run, tmp_path: Path) -> None:
    assert run.model is not None
    again = episode.load_run(run.folder, with_lora(bert(), seed=7)).model
    assert again is not None
    assert torch.equal(scores(again), scores(run.model))
    run.model.save_pretrained(tmp_path)
    assert torch.equal(scores(PeftModel.from_pretrained(bert(), tmp_path)), scores(run.model))
    more = fit(with_lora(bert(), seed=8), start_from=run.folder, rounds=1)
    assert more.history[0]["loss"] < run.history[0]["loss"]


def test_an_adapter_goes_on_and_can_be_given_more_rounds(tmp_path: Path) -> None:
    whole = fit(with_lora(bert()), rounds=3)
    first = fit(with_lora(bert()), folder=tmp_path, rounds=2)
    longer = fit(first.model, folder=tmp_path, rounds=3, extend=True)
    assert torch.equal(longer.x, whole.x)
    with pytest.raises(EpisodeError, match=r"more than its rounds has changed \(task\.initial_st"):
        fit(with_lora(bert(seed=5)), folder=tmp_path, rounds=4, extend=True)


def test_another_base_is_refused_in_a_sentence(run: episode.Run) -> None:
    with pytest.raises(EpisodeError, match="trained beside a frozen base with the checksum") as no:
        episode.load_run(run.folder, with_lora(bert(seed=5)))
    assert str(no.value).endswith("build the model from the same base.")
    with pytest.raises(EpisodeError, match=r"differ in task\.initial_state"):
        fit(with_lora(bert(seed=5)), folder=run.folder)


def test_an_adapter_of_another_rank_is_refused_in_a_sentence(run: episode.Run) -> None:
    with pytest.raises(EpisodeError, match=r"it trains .*lora_A.* of the shape \[4, 64\]") as no:
        fit(with_lora(bert(), rank=8), folder=run.folder)
    assert "and this model has [8, 64]" in str(no.value)
    assert len(str(no.value)) < 400
    with pytest.raises(EpisodeError, match="do not fit the model: size mismatch"):
        episode.load_run(run.folder, with_lora(bert(), rank=8))


def test_a_model_with_nothing_left_to_train_is_refused_in_a_sentence() -> None:
    model = with_lora(bert(), inference_mode=True).requires_grad_(False)
    with pytest.raises(EpisodeError, match=r"no trainable parameters.*is_trainable=True"):
        fit(model)


def test_dropout_repeats_for_any_number_of_workers(
    run: episode.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("episode.engines.simulation.usable_cores", lambda: 3)
    assert torch.equal(fit(with_lora(bert()), workers=3).x, run.x)
    without = bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    assert not torch.equal(fit(with_lora(without)).x, run.x)


def test_parts_of_padded_batches_have_the_gradient_of_the_whole() -> None:
    def gradient(accumulate: int) -> Tensor:
        model = with_lora(bert(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
        options = {"batch_size": 8, "collate": collator(), "accumulate": accumulate}
        task = NeuralTask(model.double(), SILOS, loss, **options)
        _, blocks = task.objective().gradient(Draw(1, "local", 0))
        return torch.cat([b.reshape(-1) for b in blocks_of(blocks)])

    torch.testing.assert_close(gradient(1), gradient(4), rtol=1e-9, atol=1e-12)


def test_a_loss_is_given_the_batch_as_the_collator_made_it() -> None:
    seen = set()

    def by_attribute(model: nn.Module, batch: BatchEncoding) -> Tensor:
        seen.add(batch.input_ids.shape[1])
        assert isinstance(batch, BatchEncoding)
        return model(batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels).loss

    assert torch.equal(fit(with_lora(bert()), loss=by_attribute).x, fit(with_lora(bert())).x)
    assert len(seen) > 1


def test_an_encoding_of_all_texts_is_a_silo() -> None:
    texts = [f"w{k} w{k + 1} w{k + 2}" for k in range(12)]
    encoded = tokenizer()(texts, return_tensors="pt")
    encoded["labels"] = torch.arange(12) % 3
    model = with_lora(bert())
    chosen = settings()
    del chosen["collate"]
    assert episode.fit(model, [encoded, encoded], loss, **chosen).status == "finished"


def language_loss(model: nn.Module, batch: Any) -> Tensor:
    batch = {**batch, "labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}
    return loss(model, batch)


def test_tied_weights_stay_tied_and_count_once(tmp_path: Path) -> None:
    model = masked_lm()
    run = fit(model, loss=language_loss, folder=tmp_path, eta=0.1)
    assert model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    assert run.x.numel() == sum(p.numel() for p in model.parameters())
    again = episode.load_run(tmp_path, masked_lm()).model
    assert torch.equal(scores(again), scores(model))


def test_rotary_frequencies_stay_as_they_were() -> None:
    model, start = llama(), llama()
    names = [n for n, _ in model.named_buffers() if "inv_freq" in n]
    run = fit(model, loss=language_loss, eta=0.1, algorithm="fedavg")
    assert names
    assert run.buffers.nbytes == 0
    for name, buffer in start.named_buffers():
        assert torch.equal(dict(model.named_buffers())[name], buffer)
    assert run.history[-1]["loss"] < run.history[0]["loss"]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_diagnosis_says_which_attention_has_no_second_derivative_and_goes_on(
    attention: str,
) -> None:
    model = with_lora(bert(attn_implementation=attention, attention_probs_dropout_prob=0.0))
    options = DiagnosisOptions(steps=2, points=3, local_steps=2, rehearsal=4, iterations=3)
    found = episode.diagnose(model, SILOS, loss, collate=collator(), batch_size=8, options=options)
    sentence = "ScaledDotProductFlashAttentionForCpu has no second derivative in torch: build"
    assert (sentence in str(found)) == (attention == "sdpa")
    assert bool(found.points[0].hessian) == (attention == "eager")
    assert found.verdict.eta > 0
