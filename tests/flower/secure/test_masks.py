"""Masked words look like noise to whoever lacks the keys, and cancel in the sum."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import chi2

from episode.flower.secure import masks
from episode.flower.secure.fixed_point import (
    OutOfRangeError,
    Words,
    bits_for,
    decode,
    encode,
    exponent_of,
)
from episode.flower.secure.keys import KeyShare
from episode.flower.secure.masks import _BLOCK, add_masks

VECTORS = 1000
SIZE = 64


def cohort(sites: int) -> dict[int, tuple[bytes, bytes]]:
    """Return a private and a public key for each site."""
    pairs = (KeyShare.new(1, client, None) for client in range(sites))
    return {client: (private, share.public) for client, (private, share) in enumerate(pairs)}


def masked(words: Words, own: int, keys: dict[int, tuple[bytes, bytes]], context: bytes) -> Words:
    sent = words.copy()
    peers = {client: public for client, (_, public) in keys.items() if client != own}
    add_masks(sent, own, keys[own][0], peers, context)
    return sent


@pytest.mark.parametrize("sites", [3, 8])
def test_masks_cancel_in_the_sum_and_in_no_part_of_it(sites: int) -> None:
    keys, size = cohort(sites), 70_000  # more than one chunk
    clear = [torch.randn(size, generator=torch.Generator().manual_seed(c)) for c in range(sites)]
    words = [encode(v, 30, sites) for v in clear]
    sent = [masked(w, c, keys, b"round 0") for c, w in enumerate(words)]
    total, again = np.zeros(size, np.uint64), np.zeros(size, np.uint64)
    for w in sent:
        total += w
    for w in reversed(sent):
        again += w
    assert np.array_equal(total, again), "the order does not matter"
    exact = torch.stack(clear).double().sum(0)
    assert float((decode(total, 30) - exact).abs().max()) <= sites * 2.0**-31
    with pytest.raises(OutOfRangeError):
        decode(total - sent[0], 30)  # one site is missing


def test_threads_share_the_work_and_each_block_has_masks_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys, words = cohort(3), np.zeros(2 * _BLOCK + 5, np.uint64)
    sent = []
    for cores in (1, 3):
        monkeypatch.setattr(masks, "usable_cores", partial(int, cores))
        sent.append(masked(words, 0, keys, b"round 0"))
    assert np.array_equal(*sent)
    blocks = np.split(sent[0], [_BLOCK, 2 * _BLOCK])
    assert not np.any(blocks[0] == blocks[1]), "a stream was used twice"
    assert not np.any(blocks[0][:5] == blocks[2])


def test_words_of_another_context_do_not_cancel() -> None:
    keys, words = cohort(3), encode(torch.ones(100), 30, 3)
    contexts = [b"round 0", b"round 0", b"round 1"]
    total = np.zeros(100, np.uint64)
    for client, context in enumerate(contexts):
        total += masked(words, client, keys, context)
    with pytest.raises(OutOfRangeError):
        decode(total, 30)


def chi_square_of_bytes(vectors: list[Words]) -> float:
    """Return the p-value of the hypothesis that all bytes are equally likely."""
    seen = np.bincount(np.concatenate(vectors).view(np.uint8), minlength=256)
    expected = seen.sum() / 256
    return float(chi2.sf(((seen - expected) ** 2 / expected).sum(), 255))


def correlation(vectors: list[Words], clear: torch.Tensor) -> float:
    """Return the correlation of the words, as numbers, with the input; in standard errors."""
    sent = np.stack([v.view(np.int64).astype(np.float64) for v in vectors])
    each = np.tile(clear.double().numpy(), (len(vectors), 1))
    return float(np.corrcoef(sent.ravel(), each.ravel())[0, 1]) * np.sqrt(sent.size)


def test_what_the_server_sees_of_one_site_is_uniform_and_without_the_mask_it_is_not() -> None:
    clear = torch.randn(SIZE, generator=torch.Generator().manual_seed(3))
    words = encode(clear, 30, 3)
    # Keys of the test are fixed, so that it gives the same result each time.
    secrets = [bytes([k + 1]) * 32 for k in range(3)]
    keys = {
        k: (s, X25519PrivateKey.from_private_bytes(s).public_key().public_bytes_raw())
        for k, s in enumerate(secrets)
    }
    seen = [masked(words, 1, keys, f"attempt {k}".encode()) for k in range(VECTORS)]
    assert chi_square_of_bytes(seen) > 0.001
    assert abs(correlation(seen, clear)) < 4
    bare = [words] * VECTORS
    assert chi_square_of_bytes(bare) < 1e-9
    assert abs(correlation(bare, clear)) > 100


def test_values_beyond_the_range_are_refused_and_no_sum_of_others_overflows() -> None:
    sites = 5
    bits = bits_for(exponent_of(torch.tensor([0.7])), sites)
    largest = 2.0**61 / sites * 2.0**-bits
    edge = torch.tensor([largest * 0.999999, -largest * 0.999999], dtype=torch.float64)
    total = sum((encode(edge, bits, sites) for _ in range(sites)), np.zeros(2, np.uint64))
    assert torch.allclose(decode(total, bits), sites * edge)
    for wrong in (largest * 1.01, -largest * 1.01, float("nan"), float("inf")):
        with pytest.raises(OutOfRangeError):
            encode(torch.tensor([wrong], dtype=torch.float64), bits, sites)
    with pytest.raises(OutOfRangeError, match="2305843009213693951, where"):
        encode(torch.tensor([2**61 - 1]), 0, sites)
    assert encode(torch.tensor([1.5], dtype=torch.bfloat16), 1, 3).tolist() == [3]
    assert encode(torch.tensor([2**55 + 1, -7]), 0, 3).view(np.int64).tolist() == [2**55 + 1, -7]
