"""Models have the published sizes, and padding is invisible to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from episode.models.birnn import PairClassifier
from episode.models.lstm import TextClassifier
from episode.models.resnet import Norm, ResNet
from episode.models.tanh_rnn import TanhRNN
from episode.models.text import SentenceEncoder, frozen_words
from episode.tasks.losses import multiclass_hinge


def trainable(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_models_have_their_published_sizes() -> None:
    words = frozen_words(torch.zeros(2, 300))
    assert trainable(PairClassifier(words)) == 18_278_915
    assert trainable(ResNet("resnet50", 1000, large=True)) == 25_557_032
    assert trainable(ResNet("resnet18", 10)) == 11_173_962
    assert trainable(ResNet("resnet50", 10)) == 23_520_842
    lstm = nn.LSTM(300, 256, num_layers=2)
    head = 256 * 2 + 2
    assert trainable(TextClassifier(words)) == trainable(lstm) + head


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("name", "large", "size"), [
    ("resnet8", False, 32), ("resnet18", False, 32), ("resnet32", False, 32),
    ("resnet50", False, 32), ("resnet50", True, 64),
])  # fmt: skip
def test_resnets_give_one_score_per_class(name: str, large: bool, size: int, norm: str) -> None:
    model = ResNet(name, 7, large=large, norm=norm, width=8)
    assert model(torch.randn(2, 3, size, size)).shape == (2, 7)
    assert bool(list(model.buffers())) == (norm == "batch")


@pytest.mark.parametrize(("width", "groups"), [(8, [1, 1, 2, 4]), (40, [2, 5, 10, 20])])
def test_groups_divide_the_channels_and_have_sixteen_or_more(width: int, groups: list[int]) -> None:
    model = ResNet("resnet18", 2, norm="group", width=width)
    norms = [m for m in model.modules() if isinstance(m, nn.GroupNorm)]
    assert sorted({n.num_groups for n in norms}) == sorted(set(groups))


def ragged(count: int, longest: int) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.randint(1, longest + 1, (count,))
    return torch.randint(0, 20, (count, longest)), lengths


def torch_states(
    encoder: SentenceEncoder, kind: type[nn.RNNBase], tokens: torch.Tensor, lengths: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """States and final states of torch's own bidirectional module with the same weights."""
    layers = len(encoder.forwards)
    both = kind(  # type: ignore[call-arg]
        encoder.words.embedding_dim, encoder.size // 2, num_layers=layers, bidirectional=True
    )
    for layer in range(layers):
        for way, own in (("", encoder.forwards), ("_reverse", encoder.backwards)):
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                value = getattr(own[layer], f"{name}_l0")
                getattr(both, f"{name}_l{layer}{way}").data.copy_(value)
    packed = pack_padded_sequence(encoder.words(tokens.t()), lengths, enforce_sorted=False)
    states, final = both(packed)
    last = final[0] if isinstance(final, tuple) else final
    return pad_packed_sequence(states, padding_value=float("-inf"))[0], last


@pytest.mark.parametrize("count", [5, 150])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("cell", "kind"), [("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)])
def test_the_encoder_is_torchs_on_packed_sequences(
    cell: str, kind: type[nn.RNNBase], layers: int, count: int
) -> None:
    torch.manual_seed(0)
    words = frozen_words(torch.randn(20, 6))
    encoder = SentenceEncoder(words, 5, cell, layers)  # type: ignore[arg-type]
    tokens, lengths = ragged(count, 9)
    states, last = torch_states(encoder, kind, tokens, lengths)
    torch.testing.assert_close(encoder(tokens, lengths), states.amax(0), atol=1e-5, rtol=1e-5)
    encoder.pooling = "last"
    expected = torch.cat([last[-2], last[-1]], dim=1)
    torch.testing.assert_close(encoder(tokens, lengths), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_word_vectors_have_the_type_of_the_rest_of_the_model(dtype: torch.dtype) -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        words = frozen_words(torch.zeros(20, 6, dtype=torch.float32))
        encoder = SentenceEncoder(words, 3)
    finally:
        torch.set_default_dtype(before)
    assert {p.dtype for p in encoder.parameters()} == {dtype}


def test_padding_is_invisible_unless_the_authors_quirk_is_asked_for() -> None:
    torch.manual_seed(1)
    words = frozen_words(torch.randn(20, 6))
    tokens, lengths = ragged(4, 7)
    lengths[0], lengths[1:] = 7, lengths[1:].clamp(max=4)
    encoder = SentenceEncoder(words, 5)
    alone = torch.cat([encoder(tokens[i : i + 1], lengths[i : i + 1]) for i in range(4)])
    torch.testing.assert_close(encoder(tokens, lengths), alone)
    encoder.pooling = "zero_padded_max"
    quirk = encoder(tokens, lengths)
    torch.testing.assert_close(quirk[0], alone[0])
    torch.testing.assert_close(quirk[1:], alone[1:].clamp(min=0))
    assert (alone[1:] < 0).any()


def test_the_hinge_is_the_papers_by_hand() -> None:
    scores = torch.tensor([[2.0, 1.5, 0.0], [0.0, 3.0, 1.0]])
    # max(0, 1.5 + 1 - 2, 0 + 1 - 2) = 0.5 and max(0 + 1 - 1, 3 + 1 - 1, 0) = 3
    assert multiclass_hinge(scores, torch.tensor([0, 2])).item() == pytest.approx(1.75)


def _recurrences(**options: bool) -> tuple[nn.RNN, TanhRNN]:
    torch.manual_seed(3)
    theirs = torch.nn.RNN(5, 7, **options).double()
    ours = TanhRNN(5, 7, **options).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("steps", [1, 2, 9])
def test_the_tanh_recurrence_has_the_states_and_gradients_of_torchs(
    batch_first: bool, steps: int
) -> None:
    theirs, ours = _recurrences(batch_first=batch_first)
    sequence = torch.randn(4, steps, 5) if batch_first else torch.randn(steps, 4, 5)
    sequence = sequence.double().requires_grad_()
    weights = torch.randn(*sequence.shape[:2], 7).double()
    found = []
    for model in (theirs, ours):
        states, last = model(sequence)
        loss = (states * weights).sum() + last.square().sum()
        found.append([states, last, *torch.autograd.grad(loss, [sequence, *model.parameters()])])
    for theirs_, ours_ in zip(*found, strict=True):
        torch.testing.assert_close(ours_, theirs_, rtol=1e-12, atol=1e-12)


def test_the_tanh_recurrence_starts_from_the_weights_of_torchs() -> None:
    torch.manual_seed(0)
    theirs = torch.nn.RNN(3, 4).state_dict()
    torch.manual_seed(0)
    ours = TanhRNN(3, 4).state_dict()
    assert list(ours) == list(theirs)
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_tanh_recurrence_can_be_differentiated_twice() -> None:
    _, ours = _recurrences()
    w, u, b, c = (p.detach().requires_grad_() for p in ours.parameters())
    sequence = torch.randn(4, 2, 5).double().requires_grad_()

    def states(*given: torch.Tensor) -> torch.Tensor:
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        values = dict(zip(names, given[1:], strict=True))
        return torch.func.functional_call(ours, values, given[0])[0]

    assert torch.autograd.gradcheck(states, (sequence, w, u, b, c))
    assert torch.autograd.gradgradcheck(states, (sequence, w, u, b, c))


def test_the_tanh_recurrence_takes_a_first_state_as_torchs_does() -> None:
    theirs, ours = _recurrences()
    sequence, first = torch.randn(4, 2, 5).double(), torch.randn(1, 2, 7).double()
    assert torch.equal(ours(sequence, first)[0], theirs(sequence, first)[0])


@pytest.mark.parametrize(("norm", "large"), [("batch", False), ("group", False), ("batch", True)])
def test_the_layout_of_images_changes_no_score_and_no_gradient(norm: Norm, large: bool) -> None:
    torch.manual_seed(0)
    model = ResNet("resnet8", 10, width=8, norm=norm, large=large).double()
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    scores = model(images)
    expected = model.head(model.stages(model.stem(images)).mean((2, 3)))
    assert torch.allclose(scores, expected, rtol=0, atol=1e-12)
    found, wanted = (
        torch.autograd.grad(s.square().sum(), list(model.parameters())) for s in (scores, expected)
    )
    for ours, theirs in zip(found, wanted, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=1e-9)
