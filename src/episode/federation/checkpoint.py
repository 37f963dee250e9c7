"""Checkpoints: one safetensors file, complete or absent, never half-written and never pickled.

Tensors of the server and of each client; the plain values, a checksum and the identity of the run
in the file's own JSON header. Written to a temporary file, fsynced and renamed, so that a kill at
any moment leaves the last good one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from episode.errors import EpisodeError
from episode.federation.state import Buffers, ClientState, Counts, ServerState

FORMAT = 1


def save(
    path: Path, server: ServerState, clients: Mapping[int, ClientState], identity: str
) -> None:
    """Writes the state between two rounds; `identity` names the run that may read it back."""
    tensors = {"server.x": server.x}
    for name in ("memory", "velocity"):
        tensor = getattr(server, name)
        if tensor is not None:
            tensors[f"server.{name}"] = tensor
    tensors["server.buffers.floats"] = server.buffers.floats
    tensors["server.buffers.integers"] = server.buffers.integers
    for client, state in clients.items():
        tensors |= {f"client.{client}.{name}": t for name, t in state.tensors().items()}
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    header = {
        "format": FORMAT,
        "identity": identity,
        "round": server.round,
        "counts": dataclasses.asdict(server.counts),
        "checksum": _checksum(tensors),
    }
    write_tensors(path, tensors, {"episode": json.dumps(header)})


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """A safetensors file, whole or not at all: what was there before stays until it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # One writer at a time (see RunFolder), so what a kill leaves here the next one replaces.
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        save_file(dict(tensors), temporary, metadata)
    except SafetensorError as error:
        temporary.unlink(missing_ok=True)
        message = f"{path} cannot be written ({error}); what was there before is intact"
        raise OSError(message) from None
    temporary.chmod(0o644)  # as a run's other files; safetensors writes for the owner alone
    _sync(temporary)
    os.replace(temporary, path)
    _sync(path.parent)


def load(path: Path, identity: str, device: str) -> tuple[ServerState, dict[int, ClientState]]:
    """Reads a checkpoint back; refuses one that is damaged or belongs to another run."""
    header, tensors = _read(path)
    if header["identity"] != identity:
        raise EpisodeError(
            f"The checkpoint {path} belongs to another configuration: "
            "choose another folder, or remove this one to start afresh."
        )
    tensors = {name: t.to(device) for name, t in tensors.items()}
    server = ServerState(
        x=tensors.pop("server.x"),
        buffers=Buffers(
            tensors.pop("server.buffers.floats"), tensors.pop("server.buffers.integers")
        ),
        round=header["round"],
        memory=tensors.pop("server.memory", None),
        velocity=tensors.pop("server.velocity", None),
        counts=Counts(**header["counts"]),
    )
    clients: dict[int, ClientState] = {}
    for name, tensor in tensors.items():
        _, client, field = name.split(".")
        setattr(clients.setdefault(int(client), ClientState()), field, tensor)
    return server, clients


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    damaged = EpisodeError(
        f"The checkpoint {path} is damaged: remove the run's folder to start afresh, "
        "or put back a copy of the file."
    )
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["episode"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise damaged from error
    if header.get("format") != FORMAT:
        raise EpisodeError(
            f"The checkpoint {path} has format {header.get('format')}, and this version reads "
            f"format {FORMAT}: resume it with the version that wrote it (see env.json)."
        )
    if header.get("checksum") != _checksum(tensors):
        raise damaged
    return header, tensors


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 over names and bytes: safetensors sees a truncated file, but not a flipped bit."""
    value = 0
    for name in sorted(tensors):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensors[name].numpy().tobytes(), value)
    return value


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
