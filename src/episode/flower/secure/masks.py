"""Masks that only two sites know, and that cancel in the sum of all.

Each pair of sites agrees on a secret (X25519), from which HKDF derives a key for this one exchange.
The site with the lower number adds the key's AES-128 stream to its words, the other subtracts it:
the counter mode of AES-GCM, without its tag, because processors have faster code for it than for
plain CTR. All primitives are those of the `cryptography` package.

Words are masked in blocks, each with a stream of its own, so that several threads can share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from episode.engines.simulation import usable_cores
from episode.flower.secure.fixed_point import Words

_CHUNK = 1 << 15
"""Words that get all their masks at a time: they and a mask stay in the processor's cache."""
_BLOCK = 8 * _CHUNK
"""Words that one thread takes at a time, with streams of their own: all sites need the same."""
_PURPOSE = b"episode secure aggregation, mask, version 2\0"
_ZEROS = memoryview(bytes(8 * _CHUNK))


def add_masks(
    words: Words, own: int, private: bytes, peers: Mapping[int, bytes], context: bytes
) -> None:
    """Add to a site's words, in place, the mask that it shares with each of its peers.

    Args:
        words: The words to be sent.
        own: The site's number.
        private: Its X25519 private key for this exchange.
        peers: The public keys of the other sites of the cohort, by number.
        context: What the masks are for: another context gives masks that have nothing in common.

    Raises:
        ValueError: A public key is not one, or would give a secret that everybody knows.
    """
    key = X25519PrivateKey.from_private_bytes(private)
    pairs = []
    for peer, public in sorted(peers.items()):
        secret = key.exchange(X25519PublicKey.from_public_bytes(public))
        pairs.append((np.add if own < peer else np.subtract, _derived(secret, context)))
    blocks = [words[start : start + _BLOCK] for start in range(0, len(words), _BLOCK)]
    with ThreadPoolExecutor(usable_cores()) as threads:
        list(threads.map(_mask, blocks, range(len(blocks)), repeat(pairs)))


def _mask(block: Words, number: int, pairs: Sequence[tuple[Callable[..., Words], bytes]]) -> None:
    """Add or subtract the stream of each pair's key for this block."""
    nonce = number.to_bytes(12, "big")
    streams = [
        (combine, Cipher(algorithms.AES(key), modes.GCM(nonce)).encryptor())
        for combine, key in pairs
    ]
    stream = memoryview(bytearray(8 * _CHUNK))
    for start in range(0, len(block), _CHUNK):
        part = block[start : start + _CHUNK]
        drawn = stream[: part.nbytes]
        mask = np.frombuffer(drawn, np.uint64)
        for combine, encryptor in streams:
            encryptor.update_into(_ZEROS[: part.nbytes], drawn)
            combine(part, mask, out=part)


def _derived(secret: bytes, context: bytes) -> bytes:
    """Return the key of one exchange. It is used once, so that nonces can count blocks."""
    return HKDF(SHA256(), 16, salt=None, info=_PURPOSE + context).derive(secret)
