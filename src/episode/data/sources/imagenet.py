"""ImageNet as folders: `train/<wnid>/*.JPEG` and `val/<wnid>/*.JPEG`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from episode.data.images import verify_images
from episode.data.progress import track
from episode.data.sources.source import LabelledSource, Row, find, not_trained_on
from episode.errors import EpisodeError

IMAGE_SUFFIXES = {".jpeg", ".jpg", ".png", ".bmp", ".webp"}


class ImageNetSource(LabelledSource):
    """Photographs, in one folder per class; any folders of this form will do."""

    name = "imagenet"
    title = "ImageNet"
    summary = "ImageNet 2012, 150 GB; needs an account"
    hub = "ILSVRC/imagenet-1k"
    landmark = "train"
    sizes = {"train": 1_281_167, "test": 50_000}  # noqa: RUF012
    hub_splits = ("train", "validation")

    def folders(self, folder: Path) -> dict[str, Path]:
        """Return the folders of the splits; the validation images are the usual test split."""
        train = find(folder, "train")
        val = train.with_name("val") if train else None
        if train is None or val is None or not train.is_dir() or not val.is_dir():
            raise EpisodeError(
                f"ImageNet needs the folders train and val, but {folder} does not have both."
            )
        return {"train": train, "test": val}

    def label_names(self, folder: Path) -> list[str]:
        """Return the names of the classes' folders, sorted."""
        train = self.folders(folder)["train"]
        names = sorted(p.name for p in train.iterdir() if p.is_dir())
        if not names:
            raise EpisodeError(f"{train} has no classes: put images into {train}/<class>/.")
        return names

    def rows(self, folder: Path) -> dict[str, Iterable[Row]]:
        numbers = {name: number for number, name in enumerate(self.label_names(folder))}
        return {split: _images(root, numbers) for split, root in self.folders(folder).items()}

    def check(self, folder: Path) -> dict[str, dict[str, int]]:
        for rows in self.rows(folder).values():
            verify_images([row.path for row in rows])
        return super().check(folder)

    def write_split(self, folder: Path, split: str, rows: Any) -> None:
        from datasets import Image

        rows = rows.cast_column("image", Image(decode=False))
        root = folder / ("val" if split == "test" else split)
        for number, row in enumerate(track(rows, f"imagenet {split}", len(rows))):
            place = root / f"{row['label']:04d}"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{number:07d}.JPEG").write_bytes(row["image"]["bytes"])


IMAGENET = ImageNetSource()


def _images(folder: Path, numbers: dict[str, int]) -> list[Row]:
    found: list[Row] = []
    for entry in sorted(folder.iterdir()):
        if not entry.is_dir():
            if entry.suffix.lower() in IMAGE_SUFFIXES:
                raise EpisodeError(f"{entry} has no label: put images into {folder}/<class>/.")
            continue
        files = sorted(p for p in entry.iterdir() if p.suffix.lower() in IMAGE_SUFFIXES)
        if files and entry.name not in numbers:
            raise not_trained_on(str(files[0]), entry.name)
        found += [Row(numbers[entry.name], file) for file in files]
    if not found:
        raise EpisodeError(f"There are no images below {folder}.")
    return found
