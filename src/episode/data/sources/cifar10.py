"""CIFAR-10's python batches, read with an unpickler that runs nothing."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from episode.data.progress import track
from episode.data.sources.source import LabelledSource, Row, require
from episode.errors import EpisodeError
from episode.files import read_regular

SHAPE = (3, 32, 32)
LABELS = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

Batch = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]
"""Images `[examples, 3, 32, 32]` and labels `[examples]`."""


class Cifar10Source(LabelledSource):
    """Images of 32 x 32 pixels in ten classes, in six pickled batches."""

    name = "cifar10"
    title = "CIFAR-10"
    summary = "CIFAR-10, 170 MB"
    hub = "uoft-cs/cifar10"
    landmark = "data_batch_1"
    sizes = {"train": 50_000, "test": 10_000}  # noqa: RUF012
    labels = LABELS
    md5 = {  # noqa: RUF012
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }

    def files(self, folder: Path) -> dict[str, list[Path]]:
        """Return the paths of the training batches and of the test batch."""
        paths = require(folder, self.md5, self.title)
        return {"train": paths[:-1], "test": paths[-1:]}

    def rows(self, folder: Path) -> dict[str, Iterable[Row]]:
        return {
            split: (
                Row(int(label), path, f"Image {number}")
                for path in track(paths, f"reading {split} batches", len(paths))
                for number, label in enumerate(read_batch(path)[1])
            )
            for split, paths in self.files(folder).items()
        }

    def write_split(self, folder: Path, split: str, rows: Any) -> None:
        *train, test = self.md5
        names = train if split == "train" else [test]
        for k, name in enumerate(names):
            chosen = range(k * len(rows) // len(names), (k + 1) * len(rows) // len(names))
            images, labels = [], []
            for row in track((rows[i] for i in chosen), f"cifar10 {name}", len(chosen)):
                image = row.get("img") or row["image"]
                pixels = np.asarray(image.convert("RGB"), np.uint8)
                images.append(pixels.transpose(2, 0, 1).reshape(-1))
                labels.append(int(row["label"]))
            batch = {"data": np.stack(images), "labels": labels}
            (folder / name).write_bytes(pickle.dumps(batch, protocol=2))


CIFAR10 = Cifar10Source()


def read_batch(path: Path) -> Batch:
    """Read the images and labels of one batch.

    Raises:
        EpisodeError: The file is not a CIFAR-10 batch.
    """
    try:
        content = _PlainUnpickler(io.BytesIO(read_regular(path)), encoding="bytes").load()
    except EpisodeError:
        raise EpisodeError(
            f"{path} asks for more than arrays and plain containers: "
            "it is not a CIFAR-10 batch, and was not loaded."
        ) from None
    except OSError as error:
        raise EpisodeError(f"{path} cannot be read: {error.strerror}.") from None
    except Exception:  # noqa: BLE001 - damaged pickles raise almost anything
        raise EpisodeError(f"{path} is not a whole pickle: it is damaged or cut off.") from None
    return _checked(content, path)


def _checked(content: Any, path: Path) -> Batch:
    """Refuse anything that is not a dict of images and labels."""
    if not isinstance(content, dict):
        raise EpisodeError(
            f"{path} holds no dict with data and labels: it is not a CIFAR-10 batch."
        )
    data, labels = (content.get(k, content.get(k.encode())) for k in ("data", "labels"))
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 2:
        raise EpisodeError(
            f"{path} has no data of bytes, one row per image: it is not a CIFAR-10 batch."
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
    """Stands for numpy.ndarray, which a pickle may name as an array's type, but not call."""


def _empty_array(kind: Any, shape: Any, typecode: Any) -> npt.NDArray[Any]:
    """Return what every pickled array starts from; its content follows as plain bytes."""
    if kind is not _ArrayType:
        raise EpisodeError("not an array")
    return np.ndarray((0,), "b")


def _dtype(code: Any, *rest: Any) -> np.dtype[Any]:
    """Allow numbers only: an array of objects could contain anything."""
    if code not in ("u1", "i8", "i4", b"u1", b"i8", b"i4"):
        raise EpisodeError("not an array of numbers")
    return np.dtype(code.decode() if isinstance(code, bytes) else code)


def _latin1(text: str, encoding: str) -> bytes:
    """Return the bytes that Python 3 writes as text in Python 2's pickle format."""
    if encoding != "latin1":
        raise EpisodeError("not bytes")
    return text.encode("latin1")


class _PlainUnpickler(pickle.Unpickler):
    """An unpickler that can build arrays, and calls nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """Return one of the few names that the pickle of an array needs."""
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
