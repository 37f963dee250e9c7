"""The keys of sites: one pair for each exchange, signed with the node key by which a site is known.

The server passes public keys on. It could pass on keys of its own instead, and read what is masked
with them. So a site signs its public key, and its operator gives it the fingerprints of the other
sites' node keys, obtained from their operators and not from the server.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from flwr.supercore.primitives.asymmetric import (
    bytes_to_public_key,
    public_key_to_bytes,
    sign_message,
    verify_signature,
)

from episode.errors import EpisodeError
from episode.files import read_regular

_PURPOSE = b"episode secure aggregation, key share, version 1\0"
_RAW = serialization.Encoding.Raw, serialization.PublicFormat.Raw


class RefusedError(EpisodeError):
    """A site does not answer, because the answer could show its values to the server."""


@dataclass(frozen=True)
class KeyShare:
    """A site's public key for one exchange."""

    public: bytes
    signer: bytes = b""
    """Public node key of the site, as PEM; empty if it has none."""
    signature: bytes = b""

    @classmethod
    def new(
        cls, run: int, client: int, node_key: ec.EllipticCurvePrivateKey | None
    ) -> tuple[bytes, KeyShare]:
        """Return a new private key and its share, signed if there is a node key.

        Args:
            run: Number of the Flower run, which the signature is bound to.
            client: The site's number.
            node_key: The site's private node key.
        """
        private = X25519PrivateKey.generate()
        public = private.public_key().public_bytes(*_RAW)
        if node_key is None:
            return private.private_bytes_raw(), cls(public)
        signature = sign_message(node_key, _signed(run, client, public))
        signer = public_key_to_bytes(node_key.public_key())
        return private.private_bytes_raw(), cls(public, signer, signature)

    def check(self, run: int, client: int, fingerprints: Mapping[int, str]) -> None:
        """Refuse a share that was not signed by the site whose number it has.

        Args:
            run: Number of the Flower run.
            client: The number.
            fingerprints: Fingerprints of the node keys, by the site's number.

        Raises:
            RefusedError: It is not signed, or by another key.
        """
        if client not in fingerprints:
            raise RefusedError(
                f"The cohort has a site {client}, which is not in this site's list of "
                "fingerprints: add it to the list if it takes part."
            )
        if not self.signer:
            raise RefusedError(
                f"Site {client} has not signed its key, but this site was given a fingerprint of "
                "its node key: start it with --key, or with node-key in its node config."
            )
        try:
            signer = bytes_to_public_key(self.signer)
            found = fingerprint(signer)
            if found == fingerprints[client] and not verify_signature(
                signer, _signed(run, client, self.public), self.signature
            ):
                found = "a signature that is not valid"
        except (ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
            found = "a key that cannot be read"
        if found != fingerprints[client]:
            raise RefusedError(
                f"The key of site {client} is signed by {found}, but the fingerprint of its node "
                f"key is {fingerprints[client]}: ask its operator, and not the server, which it is."
            )


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """Return a key's fingerprint, as `ssh-keygen -lf site0.pub` shows it."""
    form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    blob = base64.b64decode(key.public_bytes(*form).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def read_node_key(path: str) -> ec.EllipticCurvePrivateKey:
    """Read a site's private node key, as `ssh-keygen -t ecdsa` writes it.

    Raises:
        EpisodeError: The file cannot be read, or holds another kind of key.
    """
    try:
        data = read_regular(Path(path))
        is_ssh = b"OPENSSH PRIVATE KEY" in data
        load = serialization.load_ssh_private_key if is_ssh else serialization.load_pem_private_key
        key = load(data, password=None)
    except OSError as error:
        raise EpisodeError(f"The node key {path} cannot be read: {error.strerror}.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise EpisodeError(
            f"The node key {path} is not a private key without a passphrase that ssh-keygen -t "
            "ecdsa makes: give the file that the site is registered with."
        )
    return key


def read_fingerprints(path: str) -> dict[int, str]:
    """Read the list of all sites' fingerprints: a line for each, `0 SHA256:…`.

    Raises:
        EpisodeError: The file cannot be read, or a line is something else.
    """
    try:
        lines = read_regular(Path(path)).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise EpisodeError(f"The list of fingerprints {path} cannot be read: {reason}.") from None
    found: dict[int, str] = {}
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if len(words) != 2 or not words[0].isdecimal() or not words[1].startswith("SHA256:"):
            raise EpisodeError(
                f"Line {number} of {path} is {line[:80]!r}: write the site's number and the "
                "fingerprint that ssh-keygen -lf shows, as in '0 SHA256:…'."
            )
        if int(words[0]) in found:
            raise EpisodeError(f"{path} has two lines for site {words[0]}: leave one of them.")
        found[int(words[0])] = words[1]
    return found


def _signed(run: int, client: int, public: bytes) -> bytes:
    return _PURPOSE + f"{run}/{client}/".encode() + public
