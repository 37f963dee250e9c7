"""Masks that only two sites know, and that cancel in the sum of all.

Each pair of sites agrees on a secret (X25519), from which HKDF derives a key for this one exchange.
The site with the lower number adds the key's AES-128 stream to its words, the other subtracts it:
the counter mode of AES-GCM, without its tag, because processors have faster code for it than for
plain CTR. All primitives are those of the `cryptography` package.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from episode.flower.secure.fixed_point import Words

_CHUNK = 1 << 14
"""Words that get all their masks at a time: they and a mask stay in the processor's cache."""
_PURPOSE = b"episode secure aggregation, mask, version 1\0"


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
    streams = []
    for peer, public in sorted(peers.items()):
        secret = key.exchange(X25519PublicKey.from_public_bytes(public))
        cipher = Cipher(algorithms.AES(_derived(secret, context)), modes.GCM(bytes(12)))
        streams.append((np.add if own < peer else np.subtract, cipher.encryptor()))
    zeros, stream = memoryview(bytes(8 * _CHUNK)), memoryview(bytearray(8 * _CHUNK))
    for start in range(0, len(words), _CHUNK):
        part = words[start : start + _CHUNK]
        clear, drawn = zeros[: part.nbytes], stream[: part.nbytes]
        mask = np.frombuffer(drawn, np.uint64)
        for combine, encryptor in streams:
            encryptor.update_into(clear, drawn)
            combine(part, mask, out=part)


def _derived(secret: bytes, context: bytes) -> bytes:
    """Return the key of one exchange. It is used once, so that the nonce can be zero."""
    return HKDF(SHA256(), 16, salt=None, info=_PURPOSE + context).derive(secret)
