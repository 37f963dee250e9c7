"""An algorithm as JSON values: how it is described, built again, and changed in some of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from episode.core.clipping import CLIPPINGS
from episode.core.correction import CORRECTIONS
from episode.core.descent import DESCENTS, Descent
from episode.core.server_step import SERVER_STEPS, ServerMean
from episode.core.trust import TRUSTS
from episode.pieces import read_fields

if TYPE_CHECKING:
    from episode.core.algorithm import Algorithm

Values = Mapping[str, Any]
_INLINED = {f.name for f in fields(Descent)}
"""Fields of the built-in descent, which stand among the options."""
_LATER: dict[str, Any] = {
    "server": SERVER_STEPS.describe(ServerMean()),
    "proximal": 0.0,
    "probe_first": False,
}
"""Defaults that are left out: a run keeps the identity that it had before these could be chosen."""


def described(algorithm: Algorithm) -> dict[str, Any]:
    """Return the values of an algorithm."""
    own = type(algorithm.descent) is not Descent
    table: Any = DESCENTS.describe(algorithm.descent)
    descent = {k: v for k, v in table.items() if k != "proximal" or v}
    options = ("probe_batches", "probe_first", "reuse_probe", "weighting")
    values = {
        "correction": CORRECTIONS.describe(algorithm.correction),
        "clipping": CLIPPINGS.describe(algorithm.clipping),
        "trust": TRUSTS.describe(algorithm.trust),
        **({"descent": descent} if own else asdict(algorithm.descent)),
        "server": SERVER_STEPS.describe(algorithm.server),
        **{name: getattr(algorithm, name) for name in options},
    }
    return {k: v for k, v in values.items() if k not in _LATER or v != _LATER[k]}


def pieces_and_options(kind: type[Algorithm], values: Values) -> dict[str, Any]:
    """Return arguments for an algorithm; what is left out of its values takes its default."""
    rest = dict(values)
    found: dict[str, Any] = {
        name: pieces.build(rest.pop(name, usual), f"algorithm.{name}")
        for name, pieces, usual in (
            ("correction", CORRECTIONS, None),
            ("clipping", CLIPPINGS, None),
            ("trust", TRUSTS, "full"),
            ("server", SERVER_STEPS, "mean"),
        )
    }
    own = rest.pop("descent", {})
    own = own if isinstance(own, Mapping) else {"name": own}
    inlined = {k: rest.pop(k) for k in _INLINED & rest.keys()}
    at = "algorithm.descent" if own else "algorithm"
    found["descent"] = DESCENTS.build({"name": "sgd", **inlined, **own}, at)
    return found | read_fields(kind, rest, "algorithm", also={"name", *_INLINED})


def changed(values: Values, options: Values) -> dict[str, Any]:
    """Return an algorithm's values with some changed; a table may have some fields of a piece."""
    new = dict(options)
    for kind in ("correction", "clipping", "trust", "descent", "server"):
        own, given = values.get(kind), new.get(kind)
        if kind == "descent" and isinstance(own, Mapping) and given is None:
            given = {k: new.pop(k) for k in _INLINED & new.keys()}
        if isinstance(own, Mapping) and isinstance(given, Mapping):
            same = given.get("name", own["name"]) == own["name"]
            new[kind] = {**own, **given} if same else given
    unused = _INLINED if "descent" in options else ()
    return {k: v for k, v in values.items() if k not in unused} | new
