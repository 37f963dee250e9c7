"""ImageNet as folders: `train/<wnid>/*.JPEG` and `val/<wnid>/*.JPEG`."""

from __future__ import annotations

from pathlib import Path

from episode.data.sources.layout import find, only_in_test
from episode.errors import EpisodeError

SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".webp"}


def folders(folder: Path) -> dict[str, Path]:
    """Where training and validation images are (the latter are what everybody tests on)."""
    train = find(folder, "train")
    val = train.with_name("val") if train else None
    if train is None or val is None or not train.is_dir() or not val.is_dir():
        raise EpisodeError(f"ImageNet needs folders train and val, but {folder} has not both.")
    return {"train": train, "test": val}


def classes(train: Path) -> list[str]:
    """The classes, by their folders' names, sorted."""
    names = sorted(p.name for p in train.iterdir() if p.is_dir())
    if not names:
        raise EpisodeError(f"{train} has no folders of classes: images go to {train}/<class>/.")
    return names


def images(folder: Path, names: list[str]) -> list[tuple[Path, int]]:
    """Every image below a folder of classes, with its class's number."""
    numbers = {name: number for number, name in enumerate(names)}
    found: list[tuple[Path, int]] = []
    for entry in sorted(folder.iterdir()):
        if not entry.is_dir():
            if entry.suffix.lower() in SUFFIXES:
                raise EpisodeError(
                    f"{entry} has no label: put images into folders of their class, "
                    f"{folder}/<class>/."
                )
            continue
        files = sorted(p for p in entry.iterdir() if p.suffix.lower() in SUFFIXES)
        if files and entry.name not in numbers:
            raise only_in_test(str(files[0]), entry.name)
        found += [(file, numbers[entry.name]) for file in files]
    if not found:
        raise EpisodeError(f"There are no images below {folder}.")
    return found
