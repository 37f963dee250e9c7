"""Datasets in their official formats: one object each, which finds, reads, checks and fetches it.

`SOURCES` lists them by name.
"""

from episode.data.sources.cifar10 import CIFAR10
from episode.data.sources.glove import GLOVE, GLOVE_6B
from episode.data.sources.imagenet import IMAGENET
from episode.data.sources.sentiment140 import SENTIMENT140
from episode.data.sources.snli import SNLI
from episode.data.sources.source import Source
from episode.errors import unknown

SOURCES: dict[str, Source] = {
    source.name: source for source in (SNLI, SENTIMENT140, CIFAR10, IMAGENET, GLOVE, GLOVE_6B)
}


def source_named(name: str) -> Source:
    """Return the dataset of this name.

    Raises:
        EpisodeError: There is none; a similar name is suggested.
    """
    if name not in SOURCES:
        raise unknown("dataset", name, SOURCES)
    return SOURCES[name]
