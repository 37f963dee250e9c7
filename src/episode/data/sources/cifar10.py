"""CIFAR-10's python batches, read with an unpickler that runs nothing."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from episode.data.sources.layout import require
from episode.errors import EpisodeError

TRAIN = tuple(f"data_batch_{k}" for k in range(1, 6))
TEST = "test_batch"
LABELS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
SHAPE = (3, 32, 32)

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


def files(folder: Path) -> dict[str, list[Path]]:
    """The training batches and the test batch."""
    paths = require(folder, (*TRAIN, TEST), "CIFAR-10")
    return {"train": paths[:-1], "test": paths[-1:]}


def read_batch(path: Path) -> Batch:
    """Images uint8 `[examples, 3, 32, 32]` and labels `[examples]` of one batch."""
    try:
        content = _Plain(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except EpisodeError:
        raise EpisodeError(
            f"{path} asks for more than arrays and plain containers: "
            "it is not a CIFAR-10 batch, and was not loaded."
        ) from None
    except OSError as error:
        raise EpisodeError(f"{path} cannot be read: {error.strerror}.") from None
    except Exception:  # noqa: BLE001 — damaged pickles raise almost anything
        raise EpisodeError(f"{path} is not a whole pickle: it is damaged or cut off.") from None
    return _checked(content, path)


def where(path: Path, label: int) -> str:
    """The first image of a label, in words."""
    return f"Image {read_batch(path)[1].tolist().index(label)} of {path}"


def _checked(content: Any, path: Path) -> Batch:
    if not isinstance(content, dict):
        raise EpisodeError(f"{path} holds no dict with data and labels: it is no CIFAR-10 batch.")
    plain = {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
    data, labels = plain.get("data"), plain.get("labels")
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
        raise EpisodeError(
            f"{path} has no data of bytes, a row per image: it is no CIFAR-10 batch."
        )
    if data.shape[1] != np.prod(SHAPE):
        raise EpisodeError(f"{path} has images of {data.shape[1]} bytes: they must be 3,072.")
    if not isinstance(labels, list) or len(labels) != len(data):
        raise EpisodeError(f"{path} must have one label for each of its {len(data)} images.")
    for row, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < len(LABELS):
            raise EpisodeError(f"Image {row} of {path} has the label {label!r}: it must be 0 to 9.")
    return data.reshape(-1, *SHAPE), np.array(labels, np.int64)


class _ArrayType:
    """Stands for numpy.ndarray: it may be named, as an array's type, but not called."""


def _empty_array(kind: Any, shape: Any, typecode: Any) -> npt.NDArray[Any]:
    """What pickled arrays start from; their contents follow as plain bytes."""
    if kind is not _ArrayType:
        raise EpisodeError("not an array")
    return np.ndarray((0,), "b")


def _dtype(code: Any, *rest: Any) -> np.dtype[Any]:
    """Numbers only: an array of objects could hold anything."""
    if code not in ("u1", "i8", "i4", b"u1", b"i8", b"i4"):
        raise EpisodeError("not an array of numbers")
    return np.dtype(code.decode() if isinstance(code, bytes) else code)


def _latin1(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes in the pickle format of Python 2."""
    if encoding != "latin1":
        raise EpisodeError("not bytes")
    return text.encode("latin1")


class _Plain(pickle.Unpickler):
    """Knows how arrays are built, and nothing else that could be called."""

    def find_class(self, module: str, name: str) -> Any:
        """The few names that an array's pickle has."""
        allowed = {
            ("numpy.core.multiarray", "_reconstruct"): _empty_array,
            ("numpy._core.multiarray", "_reconstruct"): _empty_array,
            ("numpy", "ndarray"): _ArrayType,
            ("numpy", "dtype"): _dtype,
            ("_codecs", "encode"): _latin1,
        }
        if (module, name) not in allowed:
            raise EpisodeError(f"{module}.{name}")
        return allowed[module, name]
