"""Masks that only two sites know, and that cancel in the sum of all.

Each pair of sites agrees on a secret (X25519), from which HKDF derives a key for this one exchange.
The site with the lower number adds the key's AES-128-CTR stream to its words, the other subtracts
it. All primitives are those of the `cryptography` package.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from episode.flower.secure.fixed_point import Words

_CHUNK = 1 << 16
"""Words that are masked at a time: they stay in the processor's cache."""
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
    size = 8 * min(_CHUNK, len(words))
    zeros, stream = memoryview(bytes(size)), memoryview(bytearray(size))
    for peer, public in sorted(peers.items()):
        secret = key.exchange(X25519PublicKey.from_public_bytes(public))
        cipher = Cipher(algorithms.AES(_derived(secret, context)), modes.CTR(bytes(16)))
        encryptor = cipher.encryptor()
        for start in range(0, len(words), _CHUNK):
            part = words[start : start + _CHUNK]
            encryptor.update_into(zeros[: part.nbytes], stream[: part.nbytes])
            mask = np.frombuffer(stream[: part.nbytes], np.uint64)
            if own < peer:
                part += mask
            else:
                part -= mask


def _derived(secret: bytes, context: bytes) -> bytes:
    """Return the key of one exchange. It is used once, so that the counter can start at zero."""
    return HKDF(SHA256(), 16, salt=None, info=_PURPOSE + context).derive(secret)
