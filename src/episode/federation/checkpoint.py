"""Checkpoints: safetensors files, complete or absent, never half-written and never pickled.

A file holds the tensors of the server and of each client. Plain values and the identity of the run
are in its JSON header, and a checksum of both. It is written under a temporary name and renamed, so
that a kill at any moment leaves the last good one. On a cluster each rank first writes a part with
its own clients; the server's file, which names the parts, then completes the checkpoint.

Client states that are in a file already (`MappedStates`) stay there: the checkpoint, or the rank's
part of it, stores the file's name and the table of its slots.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from episode.core.vectors import bytes_of
from episode.errors import EpisodeError
from episode.federation.client_states import MappedStates, StoredStates
from episode.federation.slots import Layout, SlotFile
from episode.federation.state import Buffers, ClientState, Counts, ServerState
from episode.files import write_whole

FORMAT = 3
T = TypeVar("T")
Rest = ParamSpec("Rest")
_OUTER = "server.outer."
_PART = re.compile(r"clients-\d+-rank-(\d+)-of-(\d+)\.safetensors$")
_ROWS = re.compile(r"clients-\d-rank-\d+-of-\d+\.rows$")


def save(
    path: Path,
    server: ServerState,
    clients: Mapping[int, ClientState],
    identity: str,
    parts: Sequence[str] = (),
    owners: int | None = None,
    records: Mapping[str, int] | None = None,
) -> None:
    """Write the state between two rounds.

    Args:
        path: The file.
        server: State of the server.
        clients: States of the clients that are stored in this file.
        identity: Identity of the run that may read the file.
        parts: Names of files beside this one that hold the other clients (see `save_part`).
        owners: Checksum of the clients' distribution over the ranks.
        records: Checksums of the records written so far, by the name of their file.
    """
    tensors = {"server.x": server.x}
    held = {"memory": server.memory, "velocity": server.velocity}
    held |= {f"outer.{name}": tensor for name, tensor in server.outer.items()}
    tensors |= {f"server.{name}": tensor for name, tensor in held.items() if tensor is not None}
    tensors["server.buffers.floats"] = server.buffers.floats
    tensors["server.buffers.integers"] = server.buffers.integers
    states, more = _content_of(clients, path.parent)
    counts = dataclasses.asdict(server.counts)
    more |= {
        "counts": counts,
        "parts": list(parts),
        "owners": owners,
        "records": dict(records or {}),
    }
    _write(path, tensors | states, identity, server.round, **more)


def save_part(
    folder: Path,
    clients: Mapping[int, ClientState],
    identity: str,
    place: tuple[int, int],
    round: int,
    previous: int,
) -> str:
    """Write one rank's clients beside a checkpoint to come, and return the part's name.

    The name is empty if these clients have nothing to keep. The rank also removes its own parts
    that belong neither to this round nor to the `previous` checkpoint, because the server's file
    may be on another host. `place` is the rank and the number of ranks.
    """
    rank, ranks = place
    for path in folder.glob(f"clients-*-rank-{rank}-of-{ranks}.safetensors"):
        if int(path.name.split("-")[1]) not in (round, previous):
            path.unlink(missing_ok=True)
    tensors, more = _content_of(clients, folder)
    if not tensors:
        return ""
    name = f"clients-{round}-rank-{rank}-of-{ranks}.safetensors"
    _write(folder / name, tensors, identity, round, **more)
    return name


def file_beside(clients: Mapping[int, ClientState], folder: Path) -> str:
    """Return the name of the file in this folder that holds the states; empty if there is none."""
    if isinstance(clients, MappedStates) and clients.file.path is not None:
        path = clients.file.path
        return path.name if path.parent == folder else ""
    return ""


def keep_only(folder: Path, names: Sequence[str]) -> None:
    """Remove files of client states that belong to checkpoints which have been replaced."""
    for path in folder.glob("clients-*"):
        if path.name not in names:
            path.unlink(missing_ok=True)


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None
) -> None:
    """Write a safetensors file, whole or not at all; until then the old file stays."""
    path.parent.mkdir(exist_ok=True)  # not the run's folder: if that is gone, it was removed

    def write(target: Path) -> None:
        try:
            save_file(dict(tensors), target, metadata)
        except SafetensorError as error:
            before = (
                "what was there before is intact" if path.parent.exists() else "its folder is gone"
            )
            raise OSError(f"{path} cannot be written ({error}); {before}") from None

    write_whole(path, write, only_writer=True)


def _damage_is_a_sentence(
    read: Callable[Concatenate[Path, Rest], T],
) -> Callable[Concatenate[Path, Rest], T]:
    """Explain a file whose header or tensors are not what `save` writes."""

    @functools.wraps(read)
    def checked(path: Path, /, *args: Rest.args, **kwargs: Rest.kwargs) -> T:
        try:
            return read(path, *args, **kwargs)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise _damaged(path) from error

    return checked


@_damage_is_a_sentence
def load(
    path: Path,
    identity: str,
    device: str,
    *,
    parts_in: Path | None = None,
    place: tuple[int, int] | None = None,
    owners: int | None = None,
) -> tuple[ServerState, StoredStates]:
    """Read a checkpoint.

    Args:
        path: The server's file.
        identity: Identity of the run that reads it.
        device: Where the tensors go.
        parts_in: Folder of the parts, if it is not that of the file.
        place: A rank and the number of ranks; parts that other ranks will read are left out.
        owners: Checksum of the clients' distribution over the ranks. If it was another one when
            the checkpoint was written, all parts are read.

    Raises:
        EpisodeError: The file is damaged, incomplete, or belongs to another run.
    """
    header, tensors = _read(path, identity)
    folder = parts_in or path.parent
    files = _files_of(header, tensors, folder)
    same_owners = header.get("owners") == owners
    for name in header["parts"]:
        match = _PART.match(name)
        others = place and match and int(match[2]) == place[1] and int(match[1]) != place[0]
        if others and same_owners:
            continue
        if not match:
            raise _damaged(path)
        part = folder / name
        if not part.exists():
            raise EpisodeError(
                f"The checkpoint needs {part}, which is not there: resume where it was written, "
                "or remove the run's folder to start afresh."
            )
        of_part, more = _read(part, identity)
        if of_part["round"] != header["round"]:
            raise _damaged(part)
        files += _files_of(of_part, more, folder)
        tensors |= more
    tensors = {name: t.to(device) for name, t in tensors.items()}
    outer = [name for name in tensors if name.startswith(_OUTER)]
    server = ServerState(
        x=tensors.pop("server.x"),
        buffers=Buffers(
            tensors.pop("server.buffers.floats"), tensors.pop("server.buffers.integers")
        ),
        round=header["round"],
        memory=tensors.pop("server.memory", None),
        velocity=tensors.pop("server.velocity", None),
        outer={name.removeprefix(_OUTER): tensors.pop(name) for name in outer},
        counts=Counts(**header["counts"]),
    )
    clients: dict[int, ClientState] = {}
    for name, tensor in tensors.items():
        _, client, field = name.split(".")
        setattr(clients.setdefault(int(client), ClientState()), field, tensor)
    return server, StoredStates(clients, files, device)


@_damage_is_a_sentence
def records_of(path: Path) -> dict[str, int]:
    """Return the checksums of the records that had been written when a checkpoint was.

    Args:
        path: The server's file, which `load` has checked.
    """
    with safe_open(path, framework="pt") as file:
        header = json.loads((file.metadata() or {})["episode"])
    return dict(header.get("records", {}))


def _content_of(
    clients: Mapping[int, ClientState], folder: Path
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return what a file in this folder must hold of client states: tensors, and header values."""
    if isinstance(clients, MappedStates) and (name := file_beside(clients, folder)):
        table = {f"rows.{key}": values for key, values in clients.file.table().items()}
        return table, {"rows": {"file": name, **dataclasses.asdict(clients.file.layout)}}
    tensors = {
        f"client.{client}.{name}": tensor
        for client, state in clients.items()
        for name, tensor in state.tensors().items()
    }
    return tensors, {}


def _files_of(
    header: Mapping[str, Any], tensors: dict[str, Tensor], folder: Path
) -> list[SlotFile]:
    """Open the file of client states that this header names, if any, and remove its table."""
    if (rows := header.get("rows")) is None:
        return []
    if not _ROWS.match(rows["file"]):
        raise ValueError(rows["file"])
    layout = Layout(rows["keys"], rows["size"], rows["dtype"])
    table = {name: tensors.pop(f"rows.{name}") for name in ("keys", "slots", "checksums")}
    return [SlotFile(folder / rows["file"], layout, table)]


def _write(
    path: Path, tensors: Mapping[str, Tensor], identity: str, round: int, **more: Any
) -> None:
    tensors = {name: t.detach().cpu().contiguous() for name, t in tensors.items()}
    header = {
        "format": FORMAT,
        "identity": identity,
        "round": round,
        **more,
    }
    header["checksum"] = _checksum(header, tensors)
    write_tensors(path, tensors, {"episode": json.dumps(header)})


def _damaged(path: Path) -> EpisodeError:
    return EpisodeError(
        f"The checkpoint {path} is damaged: remove the run's folder to start afresh, "
        "or put back a copy of the file."
    )


def _read(path: Path, identity: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not path.is_file():  # safetensors would wait for the other end of a pipe
        raise _damaged(path)
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})["episode"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise _damaged(path) from error
    if header.get("format") != FORMAT:
        raise EpisodeError(
            f"The checkpoint {path} has format {header.get('format')}, and this version reads "
            f"format {FORMAT}: resume it with the version that wrote it (see env.json)."
        )
    if header.pop("checksum") != _checksum(header, tensors) or not _is_sound(header):
        raise _damaged(path)
    if header["identity"] != identity:
        raise EpisodeError(
            f"The checkpoint {path} belongs to another configuration: "
            "choose another folder, or remove this one to start afresh."
        )
    return header, tensors


def _is_sound(header: Mapping[str, Any]) -> bool:
    """Whether the plain values are of the types that `save` and `save_part` write."""
    counts = header.get("counts", {}).values()
    numbers = [header["round"], *counts]
    return type(header["round"]) is int and all(
        type(number) in (int, float) and number >= 0 for number in numbers
    )


def _checksum(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> int:
    """Return a CRC-32 of everything: safetensors notices truncation, but not a flipped bit."""
    shapes = {name: (str(t.dtype), list(t.shape)) for name, t in tensors.items()}
    value = zlib.crc32(json.dumps([header, shapes], sort_keys=True).encode())
    for name in sorted(tensors):
        value = zlib.crc32(bytes_of(tensors[name]), value)
    return value
