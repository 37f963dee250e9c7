"""Pieces of an algorithm: how they are found by name, checked, stored and built again.

A piece (a correction, a clipping, a trust, a descent or a server step) is a frozen dataclass. Its
name and its fields say everything about it, so that two pieces with different fields are two pieces
everywhere: in `==`, in a config, in the identity of a run, and on the wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from episode.errors import EpisodeError, unknown
from episode.registry import Registry, explain

P = TypeVar("P")

GROUP = "episode.algorithms"
"""Entry points through which other packages add algorithms and their pieces."""


class Pieces(Registry[type[P]]):
    """Registry of the pieces of one kind.

    Args:
        kind: "correction", "clipping", "trust", "descent" or "server".
        base: Class that every piece of this kind is derived from.
        built_in: The built-in pieces by name.
        required: Method that every piece must define itself, such as "step_size(self, …)".
    """

    def __init__(
        self, kind: str, base: type[P], built_in: Mapping[str, type[P] | str], required: str = ""
    ) -> None:
        super().__init__(kind, GROUP, built_in)
        self.base = base
        self.required = required

    def describe(self, piece: P) -> str | dict[str, Any]:
        """Return the piece as JSON values: its name, or a table of its name and its fields."""
        name, values = self.name_of(type(piece)), self._values(piece)
        return {"name": name, **values} if values else name

    def build(self, given: Any, at: str) -> P:
        """Build the piece that `describe` described; fields left out take their defaults.

        Args:
            given: Name of the piece, or a table of its name and fields.
            at: Where it was given, such as "algorithm.clipping", for messages.

        Raises:
            EpisodeError: There is no such piece, it is not sound, or a field is wrong.
        """
        values = dict(given) if isinstance(given, Mapping) else {"name": given}
        if (name := values.pop("name", None)) is None:
            names = ", ".join(sorted(self.names()))
            raise EpisodeError(f"The algorithm has no {self.kind}: set {at} to one of {names}.")
        if not isinstance(name, str):
            raise EpisodeError(f"{at} is {name!r}: it must be a name.")
        found = self.find(name)
        self._check_class(name, found)
        try:
            return found(**read_fields(found, values, at))
        except EpisodeError:
            raise
        except Exception as error:  # in the piece's own __post_init__, or a field has no value
            raise EpisodeError(f"{name} cannot be built: {explain(error)}.") from error

    def check(self, piece: Any) -> None:
        """Refuse an object that is not a sound piece of this kind."""
        if isinstance(piece, type):
            raise EpisodeError(f"The {self.kind} is a class: give {piece.__name__}(), with ().")
        self._check_class(type(piece).__name__, type(piece))
        self._values(piece)

    def _values(self, piece: P) -> dict[str, Any]:
        values = {f.name: getattr(piece, f.name) for f in fields(piece)}  # type: ignore[arg-type]
        return read_fields(type(piece), values, f"algorithm.{self.kind}")

    def _check_class(self, name: str, found: Any) -> None:
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise EpisodeError(
                f"{name} is not a {self.kind}: derive it from episode.{self.base.__name__}."
            )
        if not getattr(vars(found).get("__dataclass_params__"), "frozen", False):
            raise EpisodeError(
                f"{name} is not a frozen dataclass: write @dataclass(frozen=True) above its class."
            )
        method = self.required.partition("(")[0]
        if method and getattr(found, method) is getattr(self.base, method):
            raise EpisodeError(f"{name} has no {method} of its own: define {self.required}.")


def read_fields(
    cls: type, given: Mapping[str, Any], at: str, also: Iterable[str] = ()
) -> dict[str, Any]:
    """Return values for a dataclass's fields, each of the type that its annotation names.

    Numbers and booleans may come as whole numbers or text, and tuples as lists, as they do from
    TOML, JSON and the command line.

    Args:
        cls: The dataclass.
        given: Values by field.
        at: Where they were given, such as "algorithm.clipping", for messages.
        also: Names beside the fields that a misspelt one may have meant.
    """
    known = {f.name: str(getattr(f.type, "__name__", f.type)) for f in fields(cls)}
    if extra := given.keys() - known.keys():
        names = [f"{at}.{name}" for name in (*known, *also)] or [at]
        raise unknown("setting", f"{at}.{min(extra)}", names)
    values = {}
    for key, value in given.items():
        try:
            values[key] = _read(known[key], value)
        except (KeyError, TypeError, ValueError):
            wanted = _WANTED[known[key]]
            raise EpisodeError(f"{at}.{key} is {value!r}: it must be {wanted}.") from None
    return values


_WANTED = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a string"}
_WANTED["int | str"] = "a whole number, or a name"
_BOOLEANS = dict.fromkeys(("true", "yes", "on", "1"), True)
_BOOLEANS |= dict.fromkeys(("false", "no", "off", "0"), False)


def _read(kind: str, value: Any) -> Any:
    if kind == "bool":
        return _BOOLEANS[str(value).lower()]
    if kind == "int | str":
        is_name = (
            isinstance(value, str) and not value.strip().lstrip("+-").replace(".", "").isdigit()
        )
        return value if is_name else _read("int", value)
    if kind not in _WANTED or (kind == "str" and isinstance(value, str)):
        return tuple(value) if isinstance(value, list) else value
    if isinstance(value, bool) or (kind == "int" and not float(value).is_integer()):
        raise ValueError
    return {"int": int, "float": float}[kind](value)
