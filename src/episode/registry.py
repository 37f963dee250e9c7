"""Finds a thing by its name: a built-in, an installed plug-in, or one in a file or module.

A `Registry` is a read-only mapping of the built-in things of one kind (algorithms, tasks, …).
`find` looks further than that. A name is, in this order,

1. the name of a built-in: `episodic`;
2. the name of an installed entry point in the registry's group: `soft`;
3. a Python file and a name in it: `path/to/my_clipping.py:Soft`;
4. a module and a name in it: `my_package.clipping:Soft`.

This module imports the standard library only, and a built-in may be given as the text
`"module:attribute"`, which is imported when it is first asked for: so that listing names is quick.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib.machinery import SourceFileLoader
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import TypeVar, cast

from episode.errors import EpisodeError, unknown

T = TypeVar("T")

_AS_GIVEN = "__episode_file__"
"""Attribute of a module loaded from a file: the file's path as the user wrote it."""


class Registry(Mapping[str, T]):
    """The built-in things of one kind by name, and a way to find everybody else's.

    Args:
        kind: What is registered, as error messages name it, such as "task".
        group: Group of entry points through which other packages add to it, such as
            "episode.tasks".
        built_in: The built-in things by name. A text `"module:attribute"` is imported on demand.
        summaries: A line about each built-in thing, so that listing need not import it.

    Example:
        >>> numbers = Registry("number", "my.numbers", {"pi": "math:pi", "two": 2})
        >>> list(numbers), numbers["pi"] > 3
        (['pi', 'two'], True)
        >>> numbers.find("math:e") > 2.7
        True
        >>> numbers.find("tow")
        Traceback (most recent call last):
        episode.errors.EpisodeError: There is no number 'tow': did you mean 'two'?
    """

    def __init__(
        self,
        kind: str,
        group: str,
        built_in: Mapping[str, T | str],
        summaries: Mapping[str, str] | None = None,
    ) -> None:
        self.kind = kind
        self.group = group
        self._built_in = dict(built_in)
        self._summaries = dict(summaries or {})

    def __getitem__(self, name: str) -> T:
        thing = self._built_in[name]
        if isinstance(thing, str):
            module, _, attribute = thing.partition(":")
            self._built_in[name] = thing = getattr(importlib.import_module(module), attribute)
        return cast("T", thing)

    def __iter__(self) -> Iterator[str]:
        return iter(self._built_in)

    def __len__(self) -> int:
        return len(self._built_in)

    def find(self, name: str) -> T:
        """Find a thing by any of the four kinds of name.

        Entry points are looked up only for a name that is not built in. What is found is not
        checked: the caller knows what it must be.

        Args:
            name: Name of a built-in or of an entry point, `file.py:Name` or `module:Name`.

        Returns:
            The object of that name.

        Raises:
            EpisodeError: There is no such thing, or it cannot be imported.
        """
        if name in self._built_in:
            return self[name]
        address = self._installed().get(name, name)
        where, _, attribute = address.rpartition(":")
        if (file := address.rstrip(":")).endswith(".py"):
            raise EpisodeError(f"Say which {self.kind} of {file} is meant: {file}:Name.")
        if where.endswith(".py"):
            module = load_file(where)
        elif where:
            module = _load_module(where, self.kind, name)
        else:
            raise unknown(self.kind, name, self.names())
        try:
            return cast("T", attrgetter(attribute)(module))
        except AttributeError:
            own = [
                f"{where}:{key}"
                for key, value in vars(module).items()
                if getattr(value, "__module__", "") == module.__name__ or key.isupper()
            ]
            if where == "__main__":  # of another process, such as a Flower site
                raise EpisodeError(
                    f"There is no {self.kind} {name!r} here: it was defined in a script that this "
                    "process does not run. Put it into a module that is installed here too."
                ) from None
            raise unknown(self.kind, name, own or self.names()) from None

    def name_of(self, thing: type) -> str:
        """Return the name under which `find` finds a class again.

        A class from a file is named by the file's path as it was given to `find`. One that is
        defined in the script being run is `__main__:Name`, which only that script can find.
        """
        address = f"{thing.__module__}:{thing.__qualname__}"
        for name, built_in in self._built_in.items():
            if built_in in (thing, address):
                return name
        for name, installed in self._installed().items():
            if installed == address:
                return name
        file = getattr(sys.modules.get(thing.__module__), _AS_GIVEN, thing.__module__)
        return f"{file}:{thing.__qualname__}"

    def names(self) -> list[str]:
        """Return the names of built-in things and of installed entry points."""
        return list({**self._built_in, **self._installed()})

    def summaries(self) -> dict[str, str]:
        """Return a line about each of `names`: its `summary`, or its docstring's first line."""

        def summary(name: str) -> str:
            if name in self._summaries:
                return self._summaries[name]
            try:
                thing = self.find(name)
            except EpisodeError as error:
                return str(error)
            text = getattr(thing, "summary", None) or getattr(thing, "__doc__", None) or name
            return str(text).strip().splitlines()[0]

        return {name: summary(name) for name in self.names()}

    def _installed(self) -> dict[str, str]:
        """The addresses `module:attribute` of entry points, by name."""
        from importlib.metadata import entry_points  # slow to import, and seldom needed

        found = sorted(entry_points(group=self.group), key=lambda entry: entry.name)
        return {entry.name: f"{entry.module}:{entry.attr}" for entry in found}


def load_file(given: str) -> ModuleType:
    """Import a Python file as a module of its own; once, however often it is asked for.

    The file's folder is appended to `sys.path`, so that the file can import its neighbours.

    Raises:
        EpisodeError: There is no such file, or it cannot be imported; says in which line.
    """
    path = Path(given).expanduser()
    if not path.is_file():
        raise EpisodeError(f"There is no file {given} in {Path.cwd()}: give a path that exists.")
    resolved = path.resolve()
    # Each file has a module name of its own, so that two files of one name are two modules.
    unique = hashlib.sha256(str(resolved).encode()).hexdigest()[:8]
    name = f"episode_custom_{path.stem}_{unique}"
    if name not in sys.modules:
        if str(resolved.parent) not in sys.path:
            sys.path.append(str(resolved.parent))
        module = sys.modules[name] = ModuleType(name)
        module.__file__ = str(resolved)
        try:
            SourceFileLoader(name, str(resolved)).exec_module(module)
        except Exception as error:
            del sys.modules[name]
            raise EpisodeError(f"{given} cannot be imported: {explain(error)}.") from error
    setattr(sys.modules[name], _AS_GIVEN, given)
    return sys.modules[name]


def _load_module(module: str, kind: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise EpisodeError(
                f"There is no {kind} {name!r}: no module {error.name!r} is installed here. "
                "Install it, or give a file, path/to/file.py:Name."
            ) from None
        raise EpisodeError(f"{module} cannot be imported: {explain(error)}.") from error


def explain(error: Exception) -> str:
    """Say what went wrong in somebody else's code and, if it is known, in which line."""
    folders = (str(Path(file).parent) + os.sep for file in (__file__, importlib.__file__))
    ours = *folders, "<frozen", "<string>"
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(ours)]
    lines = [frame.lineno for frame in theirs if frame.filename == theirs[0].filename]
    line = getattr(error, "lineno", None) or (lines[-1] if lines else None)
    return f"{type(error).__name__}{f' in line {line}' if line else ''}: {error}"
