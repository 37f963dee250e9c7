"""Python code that a config names: tasks, engines and pieces of algorithms in files and modules.

A folder is data. What its config names is imported only if the user has named it too.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from episode.errors import EpisodeError


def code_named(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of code in a config by their dotted keys: `file.py:Name`, `module:Name`.

    Built-in things and installed entry points are not among them: their names have no colon.

    Example:
        >>> code_named({"task": {"name": "digits"}, "algorithm": {"clipping": "my.py:Soft"}})
        {'algorithm.clipping': 'my.py:Soft'}
    """
    found = dict(_texts(config.get("algorithm"), "algorithm"))
    for section in ("task", "engine"):
        given = config.get(section)
        name = given.get("name") if isinstance(given, Mapping) else given
        found |= dict(_texts(name, f"{section}.name"))
    return {key: text for key, text in found.items() if ":" in text}


def options_that_name(config: Mapping[str, Any]) -> list[str]:
    """Return the options of the command line with which a user names the code of a config.

    Example:
        >>> options_that_name({"task": {"name": "my task.py:Waves"}})
        ['--set', 'task.name=my task.py:Waves']
    """
    settings: dict[str, str] = {}
    for key, name in code_named(config).items():
        settings.setdefault(_place(name), f"{_key(key)}={name}")  # one for each file is enough
    return [part for setting in settings.values() for part in ("--set", setting)]


def require_named(config: Mapping[str, Any], given: Iterable[Any], where: object) -> None:
    """Refuse code that a folder names and the user does not.

    Args:
        config: Values that may come from a folder.
        given: Values that the user gave; a file or module named in them may be imported.
        where: The folder, for messages.

    Raises:
        EpisodeError: Says which code it is, and how to name it.
    """
    trusted = {_place(text) for values in given for _, text in _texts(values, "") if ":" in text}
    unnamed = {k: name for k, name in code_named(config).items() if _place(name) not in trusted}
    if unnamed:
        key, name = next(iter(unnamed.items()))
        raise EpisodeError(
            f"{where} names Python code in {key} ({name}), which is not run only because a folder "
            f"names it: if you trust that code, add {shlex.join(options_that_name(config))}"
        )


def _place(name: str) -> str:
    """Return the file or module of a name."""
    return name.rpartition(":")[0]


def _key(key: str) -> str:
    """Return the key that sets a name and leaves the fields beside it alone."""
    return f"{key}.name" if key.count(".") == 1 and not key.endswith(".name") else key


def _texts(values: Any, key: str) -> Iterator[tuple[str, str]]:
    """Yield all texts in nested values with their dotted keys."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _texts(value, f"{key}.{name}")
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from _texts(value, key)
    elif isinstance(values, str):
        yield key, values
