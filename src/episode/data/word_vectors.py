"""Word vectors in GloVe's text format: `word v1 … vd` on each line, plain, .gz or .zip."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from episode.data.progress import track
from episode.data.sources.archives import Growth
from episode.errors import EpisodeError

Floats = npt.NDArray[np.float32]
FIRST = 1000
"""How many vectors stand for the whole file where an average vector is needed."""
LONGEST_LINE = 1 << 20
"""Characters of a line; a vector of 300 numbers takes about 3,000."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?|[-+]?(inf|nan)")


@dataclass(frozen=True)
class FoundVectors:
    """The vectors of some words, and what is known of their file."""

    rows: dict[str, int]
    """The row of each word that was found."""
    vectors: Floats
    """`[words, dimension]`."""
    first: Floats
    """The file's first vectors, of its most frequent words: the same for every reader."""
    checksum: str
    """Of all lines, the same whether or not the file is compressed."""


def read_vectors(path: Path, wanted: Container[str]) -> FoundVectors:
    """Read the vectors of the wanted words, the first one of each.

    A word may contain blanks (some of GloVe 840B do): the last `dimension` fields are the vector.

    Raises:
        EpisodeError: None of the words was found, or the file is wrong; the line is named.
    """
    rows: dict[str, int] = {}
    kept: list[Floats] = []
    first: list[Floats] = []
    digest = hashlib.sha256()
    for word, read_vector in _entries(path, digest.update):
        if len(first) < FIRST:
            first.append(read_vector())
        if word in wanted and word not in rows:
            rows[word] = len(kept)
            kept.append(read_vector())
    if not kept:
        raise EpisodeError(
            f"None of the words has a vector in {path}: is it a file for another language?"
        )
    return FoundVectors(rows, np.stack(kept), np.stack(first), digest.hexdigest()[:16])


def describe_vectors(path: Path) -> dict[str, Any]:
    """Return the checksum of a file of vectors, as `read_vectors` gives it, and how long one is."""
    digest, size = hashlib.sha256(), 0
    for _, read_vector in _entries(path, digest.update):
        size = size or len(read_vector())
    return {"checksum": digest.hexdigest()[:16], "size": size}


def _entries(
    path: Path, see: Callable[[bytes], None] = lambda _: None
) -> Iterator[tuple[str, Callable[[], Floats]]]:
    """Yield each line's word and a function that reads its vector; `see` is given every line.

    The first line decides the dimension of all vectors.
    """
    dimension = 0
    for number, line in _lines(path):
        see(line.rstrip("\r\n").encode() + b"\n")
        if not line.strip():
            continue
        if not dimension:
            first = line.split()
            if len(first) == 2 and all(f.isdigit() for f in first):
                continue  # word2vec's header: the number of words and the dimension
            dimension = len(first) - 1
            if dimension < 1:
                raise _wrong(path, number, "is not a word and its vector")
        word, _, numbers = line.partition(" ")
        if line.rstrip().count(" ") != dimension:
            word, numbers = _join_blanks(path, number, line, dimension)
        yield word, functools.partial(_vector, path, number, numbers, dimension)
    if not dimension:
        raise EpisodeError(f"The vectors {path} are empty: give a file in GloVe's text format.")


def _vector(path: Path, number: int, numbers: str, dimension: int) -> Floats:
    try:
        vector = np.array(numbers.split(), dtype=np.float32)
    except ValueError:
        raise _wrong(path, number, "contains something that is not a number") from None
    if len(vector) != dimension:
        raise _wrong_dimension(path, number, len(vector), dimension)
    if not np.isfinite(vector).all():
        raise _wrong(path, number, "contains a number that is not finite")
    return vector


def _join_blanks(path: Path, number: int, line: str, dimension: int) -> tuple[str, str]:
    """Split a line whose word contains blanks into the word and its vector."""
    fields = line.rstrip().split(" ")
    word, vector = fields[:-dimension], fields[-dimension:]
    if not word or all(_NUMBER.fullmatch(f) for f in word[1:]):
        raise _wrong_dimension(path, number, len(fields) - 1, dimension)
    return " ".join(word), " ".join(vector)


def _wrong(path: Path, number: int, what: str) -> EpisodeError:
    return EpisodeError(f"Line {number} of the vectors {path} {what}.")


def _wrong_dimension(path: Path, number: int, found: int, dimension: int) -> EpisodeError:
    what = f"has {found} numbers, but the first line has {dimension}"
    return _wrong(path, number, f"{what}: all vectors must have the same dimension")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number, growth = 0, Growth(require_vectors(path))
    try:
        with _open_text(path) as file:
            while line := file.readline(LONGEST_LINE):
                number += 1
                if len(line) == LONGEST_LINE:
                    raise _wrong(path, number, f"has {LONGEST_LINE:,} characters or more")
                growth.add(len(line))
                yield number, line
    except (EOFError, zlib.error, zipfile.BadZipFile, gzip.BadGzipFile):
        raise EpisodeError(
            f"The vectors {path} are damaged or cut off after line {number}: download them again."
        ) from None
    except (RuntimeError, NotImplementedError) as error:  # encrypted, or packed in another way
        raise EpisodeError(f"The vectors {path} cannot be unpacked ({error}).") from None
    except UnicodeDecodeError:
        raise _wrong(path, number + 1, "or one soon after it is not UTF-8 text") from None
    except OSError as error:
        raise EpisodeError(f"The vectors {path} cannot be read: {error.strerror}.") from None


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    """Open a file as text; `archive.zip/name.txt` names one of an archive's files."""
    file, inner = _on_disk(path)
    if file.suffix == ".zip":
        with zipfile.ZipFile(file) as zipped, zipped.open(_member(zipped, file, inner)) as raw:
            yield io.TextIOWrapper(raw, encoding="utf-8", newline="\n")
    else:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8", newline="\n") as text:
            yield text


def require_vectors(path: Path) -> Path:
    """Return the file on the disk: for `archive.zip/name.txt`, the archive.

    Raises:
        EpisodeError: There is no such file.
    """
    file, _ = _on_disk(path)
    if not file.is_file():
        raise EpisodeError(
            f"There are no word vectors {file}: give a file in GloVe's text format, or get one "
            "with `episode data fetch glove`."
        )
    return file


def _on_disk(path: Path) -> tuple[Path, str]:
    """Split `archive.zip/name.txt` into the archive and the name, which is otherwise empty."""
    return (path.parent, path.name) if path.parent.suffix == ".zip" else (path, "")


def _member(zipped: zipfile.ZipFile, archive: Path, inner: str) -> str:
    names = _text_files(zipped)
    chosen = [name for name in names if inner in ("", Path(name).name)]
    if len(chosen) == 1:
        return chosen[0]
    if not names:
        raise EpisodeError(f"{archive} contains no .txt file of vectors.")
    raise EpisodeError(f"{archive} contains {', '.join(names)}: name one, as {archive}/{names[0]}.")


def count_vectors(path: Path) -> int:
    """Return how many words a file has, all files of an archive together.

    Raises:
        EpisodeError: Names the first line that is wrong.
    """
    files = [path]
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as zipped:
            files = [path / Path(name).name for name in _text_files(zipped)] or [path]
    return sum(
        len(read_vector()) > 0
        for file in files
        for _, read_vector in track(_entries(file), f"reading {file.name}")
    )


def _text_files(zipped: zipfile.ZipFile) -> list[str]:
    return [name for name in zipped.namelist() if name.endswith(".txt")]
