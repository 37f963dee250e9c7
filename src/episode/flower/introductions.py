"""What a site says about itself before it takes part, and what is checked of it."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from flwr.app import ArrayRecord, RecordDict

from episode.federation.state import Buffers
from episode.flower.checks import Rejected, check_label
from episode.flower.layout import Layout
from episode.flower.messages import ARRAYS, buffers_of, label_of, unpack

MOST_SITES = 100_000
"""A site that speaks of more partitions is not believed."""
_MOST_NUMBERS = 2**48
_LONGEST_LAYOUT = 50_000_000
_DTYPES = {f"torch.{n}": getattr(torch, n) for n in ("float64", "float32", "bfloat16", "float16")}


@dataclass(frozen=True)
class Introduction:
    """What a site has said about itself."""

    node: int
    client: int
    partitions: int
    """Number of sites, as far as it knows; 0 if it does not."""
    examples: int
    size: int
    dtype: str
    layout: Layout | None
    evaluates: bool
    buffers: Buffers
    form: str
    """Size, types and layout of its model as one text, with parameters in their order."""

    @classmethod
    def of(cls, node: int, content: RecordDict, max_examples: int) -> Introduction:
        """Read a node's introduction.

        Args:
            node: The node.
            content: What it sent.
            max_examples: The largest number of examples that is believed.

        Raises:
            Rejected: Something in it is missing, of the wrong type or impossible.
        """
        label = label_of(content)
        check_label(label, {"status": "done"})
        limits = {
            "client": (0, MOST_SITES - 1),
            "partitions": (0, MOST_SITES),
            "examples": (1, max_examples),
            "size": (1, _MOST_NUMBERS),
        }
        numbers = {name: _number(label, name, *limits[name]) for name in limits}
        dtype, evaluates = label.get("dtype"), label.get("evaluates")
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise Rejected(f"trains {dtype!r}, which is not one of {', '.join(_DTYPES)}")
        if not isinstance(evaluates, bool):
            raise Rejected("does not say whether it evaluates")
        layout = _layout(label.get("layout"))
        record = content.array_records.get(ARRAYS, ArrayRecord())
        if extra := sorted(record.keys() - vars(Buffers()).keys()):
            raise Rejected(f"introduced itself with the array {extra[0]!r}")
        buffers = buffers_of(unpack(record, _DTYPES[dtype]))
        _check_sizes(layout, buffers)
        floats = str(buffers.floats.dtype) if buffers.floats.numel() else None
        model = [numbers["size"], dtype, floats, None if layout is None else vars(layout)]
        return cls(
            node,
            **numbers,
            dtype=dtype,
            layout=layout,
            evaluates=evaluates,
            buffers=buffers,
            form=json.dumps(model),
        )


@dataclass(frozen=True)
class Agreement:
    """What most sites agree on."""

    form: str
    partitions: int
    """Number of sites; 0 if no site knows it."""

    @classmethod
    def of(cls, sites: Iterable[Introduction]) -> Agreement:
        """Return the agreement of some sites, at least one.

        Of several models that equally many have, it is that of the site with the lowest number; of
        several numbers of sites, the largest.
        """
        everyone = sorted(sites, key=lambda site: site.client)
        form = Counter(site.form for site in everyone).most_common(1)[0][0]
        numbers = Counter(site.partitions for site in everyone if site.form == form)
        del numbers[0]
        partitions = max(numbers, key=lambda n: (numbers[n], n), default=0)
        return cls(form, partitions)

    def objection(self, site: Introduction, in_number: bool) -> str | None:
        """Return why a site does not agree, or None if it does.

        Args:
            site: The site.
            in_number: Whether it must agree in the number of sites, too.
        """
        if site.form != self.form:
            if _without_frozen(site.form) == _without_frozen(self.form):
                return (
                    "has other values in the frozen base of its model than the other sites: give "
                    "all sites the same base"
                )
            return "trains other parameters, or in another order, than the other sites"
        if in_number and site.partitions not in (0, self.partitions) and self.partitions:
            return (
                f"was started with num-partitions={site.partitions}, but others with "
                f"{self.partitions}: give all sites the same number"
            )
        return None


def _without_frozen(form: str) -> str:
    """Return the form of a model, in its order, without the checksums of frozen parameters."""
    *rest, layout = json.loads(form)
    return json.dumps([rest, layout and {**layout, "frozen": list(layout["frozen"])}])


def example_of(sites: Iterable[Introduction]) -> Introduction:
    """Return the site from whose buffers a model starts that the server has no buffers for.

    It is one whose buffers most of these sites have, if possible finite ones, and among several the
    one with the lowest number.
    """
    everyone = sorted(sites, key=lambda site: site.client)
    counts = Counter(_content(site.buffers) for site in everyone)
    return max(
        everyone, key=lambda s: (counts[_content(s.buffers)], not s.buffers.left_the_finite())
    )


def _content(buffers: Buffers) -> tuple[bytes, ...]:
    return tuple(t.contiguous().view(torch.uint8).numpy().tobytes() for t in vars(buffers).values())


def _number(label: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = label.get(name)
    if type(value) is not int or not least <= value <= most:
        wanted = f"it must be a whole number from {least} to {most}"
        hint = ", which is max_examples" if name == "examples" else ""
        what = "partition-id" if name == "client" else name
        raise Rejected(f"introduced itself with {what} {value!r}: {wanted}{hint}")
    return value


def _layout(text: object) -> Layout | None:
    """Read a layout, which is JSON; reject one that is not flat, or not what a model has."""
    if not isinstance(text, str) or len(text) > _LONGEST_LAYOUT:
        raise Rejected("introduced itself without a layout of its model")
    if not text:
        return None
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        raise Rejected("introduced itself with a layout that cannot be read") from None
    if not isinstance(values, dict) or set(values) != {f.name for f in fields(Layout)}:
        raise Rejected("introduced itself with a layout of another version of episode-fl")
    for each in fields(Layout):
        is_right = _KINDS[str(each.type)]
        table = values[each.name]
        if not isinstance(table, dict) or not all(map(is_right, table.values())):
            raise Rejected(f"introduced itself with a layout whose {each.name} make no sense")
    layout = Layout(**values)
    if not set(layout.aliases.values()) <= layout.trained.keys():
        raise Rejected("introduced itself with a layout whose aliases make no sense")
    return layout


def _is_shape(value: object) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= 64
        and all(type(n) is int and 0 <= n <= _MOST_NUMBERS for n in value)
    )


_KINDS: dict[str, Callable[[object], bool]] = {
    "Shapes": _is_shape,
    "dict[str, str]": lambda value: isinstance(value, str),
    "dict[str, int]": lambda value: type(value) is int,
}
"""What the values of a layout's tables must be, by the table's type."""


def _check_sizes(layout: Layout | None, buffers: Buffers) -> None:
    for name, values in vars(buffers).items():
        shapes = vars(layout).get(name) if layout is not None else None
        if shapes is not None and values.shape != (sum(map(math.prod, shapes.values())),):
            raise Rejected(f"introduced itself with {name} that its layout does not have")
