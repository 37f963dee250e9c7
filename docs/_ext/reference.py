"""Writes the reference pages that are generated: public names, commands and config keys.

`make docs` calls `setup`; tests call the functions that make the pages.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

HERE = Path(__file__).parent
PAGES = HERE.parent / "reference"


def setup(app: Any) -> dict[str, Any]:
    """Write the pages before Sphinx reads its sources."""
    app.connect("builder-inited", lambda _: write_pages())
    app.connect("source-read", list_new_pages)
    return {"parallel_read_safe": True}


def list_new_pages(app: Any, page: str, source: list[str]) -> None:
    """List pages of docs/ that index.md does not name at the end of the guides."""
    if page == "index":
        names = sorted(path.stem for path in PAGES.parent.glob("*.md"))
        new = [name for name in names if name != "index" and f"\n{name}\n" not in source[0]]
        source[0] = source[0].replace("\nflower\n", "\n".join(["", "flower", *new, ""]))


def write_pages() -> None:
    """Write the pages; one that has not changed is left alone."""
    pages = {"api.md": api_page(), "commands.md": commands_page(), "config.md": config_page()}
    for name, text in pages.items():
        path = PAGES / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


# Public names

PUBLIC_MODULES = ("episode", "episode.optim", "episode.flower", "episode.testing")
GROUPS = {
    "Train": "fit Run load_run Monitor Schedule LazyClients Callback TensorBoard MLflow WandB",
    "Measure and tune": "diagnose Diagnosis sweep tune Tuned",
    "Algorithms": (
        "ALGORITHMS Algorithm Correction Uncorrected Remembered Resampled Synchronous "
        "Clipping Unclipped PerStep Episodic Guarded Trust FullTrust MeasuredTrust Descent AdamW "
        "ServerStep ServerMean ServerSGD ServerAdam ServerYogi ServerAdagrad ServerAdamW"
    ),
    "Who takes part": "Full Uniform Cyclic",
    "Split a dataset into clients": (
        "by_similarity by_dirichlet by_label_count by_user_similarity by_id"
    ),
    "Tasks and engines of your own": "TaskSettings NeuralTask Task Engine",
    "Errors": "EpisodeError ClientError",
}
"""Names of `episode` by topic; those that no topic names are listed at the end."""


def public_names() -> dict[str, list[str]]:
    """Return the public names of each public module."""
    return {name: list(importlib.import_module(name).__all__) for name in PUBLIC_MODULES}


def api_page() -> str:
    """Return the page of all public names; Sphinx takes their text from the docstrings."""
    parts = ["# Python API", "Everything below is imported from the module that heads it."]
    for module, names in public_names().items():
        parts.append(f"## {module}")
        topics = {title: text.split() for title, text in GROUPS.items()}
        if module != "episode":
            topics = {}
        named = {name for group in topics.values() for name in group}
        topics["Other" if topics else ""] = sorted(set(names) - named)
        for title, group in topics.items():
            parts += [f"### {title}"] if title else []
            parts += [_autodoc(module, name) for name in group if name in names]
    return "\n\n".join(parts) + "\n"


def _autodoc(module: str, name: str) -> str:
    thing = getattr(importlib.import_module(module), name)
    if inspect.isclass(thing):
        error = issubclass(thing, Exception)
        body = f".. autoclass:: {module}.{name}" + ("" if error else "\n   :members:")
    elif callable(thing):
        body = f".. autofunction:: {module}.{name}"
    else:
        body = f".. autodata:: {module}.{name}\n   :no-value:"
    return f"```{{eval-rst}}\n{body}\n```"


# Commands


def commands(name: str = "episode", command: Any = None) -> Iterator[tuple[str, click.Command]]:
    """Yield every command by its full name, in the order of `episode --help`."""
    if command is None:
        import typer.main

        from episode.cli.main import app

        command = typer.main.get_command(app)
    yield name, command
    for sub, inner in getattr(command, "commands", {}).items():
        yield from commands(f"{name} {sub}", inner)


def commands_page() -> str:
    """Return the page of all commands, with their arguments and flags."""
    intro = """
        # Commands

        Results go to standard output, progress and messages to standard error. Every command also
        has `-h` and `--help`. Exit codes: 0 done; 1 the run failed or a check did not hold; 2 a
        mistake in the request.
        """
    parts = [textwrap.dedent(intro).strip()]
    parts += [_command_section(name, command) for name, command in commands()]
    return "\n\n".join(parts) + "\n"


def _command_section(name: str, command: click.Command) -> str:
    lines = [f"## {name}", inspect.cleandoc(command.help or "")]
    if command.epilog:
        label, _, example = command.epilog.partition(": ")
        lines.append(f"```console\n$ {example}\n```" if label == "Example" else command.epilog)
    rows = [_parameter_row(p) for p in command.params if not getattr(p, "hidden", False)]
    if rows:
        lines.append(_table(("argument or flag", "type", "default", "meaning"), rows))
    if inner := getattr(command, "commands", {}):
        links = (f"[{name} {sub}](#{_anchor(f'{name} {sub}')})" for sub in inner)
        lines.append("Commands: " + ", ".join(links) + ".")
    return "\n\n".join(lines)


def _parameter_row(parameter: click.Parameter) -> tuple[str, ...]:
    if parameter.param_type_name == "argument":
        names = f"`{(parameter.metavar or parameter.name or '').upper()}`"
    else:
        both = [*parameter.opts, *parameter.secondary_opts]
        names = ", ".join(f"`{option}`" for option in both)
    return names, _parameter_type(parameter), _parameter_default(parameter), _help_of(parameter)


def _parameter_type(parameter: click.Parameter) -> str:
    if getattr(parameter, "is_flag", False):
        return "flag"
    kind = parameter.type
    if isinstance(kind, click.Choice):
        words = " or ".join(f"`{choice}`" for choice in kind.choices)
    else:
        known = {"integer": "whole number", "float": "number", "integer range": "whole number"}
        known |= {"float range": "number"}
        words = known.get(kind.name, kind.name)
    if (least := getattr(kind, "min", None)) is not None:
        words += f", {least} or more"
    repeated = parameter.multiple or parameter.nargs != 1
    return f"{words}, repeatable" if repeated else words


def _parameter_default(parameter: click.Parameter) -> str:
    if parameter.required:
        return "required"
    shown = getattr(parameter, "show_default", None)
    if isinstance(shown, str):
        return shown
    default = parameter.default
    if default is None or default is False or default == () or "UNSET" in repr(default).upper():
        return ""
    return f"`{getattr(default, 'value', default)}`"


def _help_of(parameter: click.Parameter) -> str:
    return re.sub(r"\s+", " ", getattr(parameter, "help", None) or "").strip()


# Config keys


@dataclass(frozen=True)
class Key:
    """One key of a config, as the reference lists it."""

    name: str
    kind: str
    default: str
    meaning: str


def config_sections() -> dict[str, list[Key]]:
    """Return the keys of every section, and of every task, by a title."""
    from episode.catalogue import TASKS
    from episode.core import Algorithm, Descent
    from episode.federation.sampling import COHORTS
    from episode.runs.config import SECTIONS, Budget

    found = {"Top level": [Key("seed", "whole number", "`0`", _MEANING["seed"])]}
    pieces = [Key(f"algorithm.{k}", *_WRITTEN[k]) for k in ("name", "correction", "clipping")]
    own = [Key(f"algorithm.{k}", *_WRITTEN[k]) for k in ("trust", "descent", "server")]
    options = [k for k in keys_of(Algorithm, "algorithm") if k.name.split(".")[1] not in _WRITTEN]
    found["Algorithm"] = [*pieces, *own, *keys_of(Descent, "algorithm"), *options]
    found["Schedule"] = keys_of(SECTIONS["schedule"], "schedule")
    found["Budget"] = [
        Key(f"budget.{name}", "whole number, 1 or more", "", _MEANING[name])
        for name in (*Budget.__dataclass_fields__, "iterations")
    ]
    rules = " or ".join(f"`{name}`" for name in COHORTS)
    found["Cohorts"] = [Key("cohorts.kind", rules, "`full`", _MEANING["kind"])]
    for name, rule in COHORTS.items():
        for key in keys_of(rule, "cohorts"):
            found["Cohorts"].append(
                Key(key.name, f"{key.kind} (`{name}`)", key.default, key.meaning)
            )
    found["Engine"] = keys_of(SECTIONS["engine"], "engine")
    found["Record"] = keys_of(SECTIONS["record"], "record")
    name = Key("task.name", "a name from `episode list tasks`, `file.py:Name` or `module:Name`",
               "`digits`", _MEANING["task"])  # fmt: skip
    found["Task"] = [name]
    for task in TASKS:
        found[f"Task: {task}"] = keys_of(TASKS[task], "task")
    return found


def config_page() -> str:
    """Return the page of all config keys."""
    from episode.catalogue import TASKS

    intro = """
        # Config keys

        A config is a TOML file, or `--set key=value` on the command line. `episode run --dry-run`
        prints every value of a run without running it. A run's folder keeps them in `config.json`.
        A task may suggest other defaults for `schedule`, `budget` and `record`; they are listed
        with the task.
        """
    parts = [textwrap.dedent(intro).strip()]
    for title, keys in config_sections().items():
        parts.append(f"## {title}")
        if title.startswith("Task: "):
            settings = TASKS[title.removeprefix("Task: ")]
            parts.append(inspect.cleandoc(settings.__doc__ or ""))
            if settings.defaults:
                flat = ((f"{s}.{k}", v) for s, values in settings.defaults.items()
                        for k, v in values.items())  # fmt: skip
                parts.append("Suggests " + ", ".join(f"`{k} = {_value(v)}`" for k, v in flat) + ".")
        rows = [(f"`{k.name}`", k.kind, k.default, k.meaning) for k in keys]
        parts.append(_table(("key", "type", "default", "meaning"), rows))
    return "\n\n".join(parts) + "\n"


def keys_of(kind: type, section: str) -> list[Key]:
    """Return the keys of a settings class: a dataclass or a pydantic model."""
    hints, meanings = get_type_hints(kind), meanings_of(kind)
    found = []
    if issubclass(kind, BaseModel):
        for name, info in kind.model_fields.items():
            shown = info.alias or name
            words = _type_words(hints[name]) + _limits(info)
            default = (
                "required"
                if info.is_required()
                else _default(info.get_default(call_default_factory=True))
            )
            found.append(Key(f"{section}.{shown}", words, default, meanings.get(name, "")))
    elif is_dataclass(kind):
        for item in fields(kind):
            default = _field_default(item)
            words = _type_words(hints[item.name])
            found.append(Key(f"{section}.{item.name}", words, default, meanings.get(item.name, "")))
    return found


def meanings_of(kind: type) -> dict[str, str]:
    """Return what a class says about each field: below the field, or in its `Args`."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("episode"):
            found |= _args_section(base.__doc__ or "")
            found |= _field_docstrings(base)
    return {name: re.sub(r"\s+", " ", text).strip() for name, text in found.items()}


def _field_docstrings(kind: type) -> dict[str, str]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for item, after in zip(tree.body, tree.body[1:], strict=False):
        if not (isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)):
            continue
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            found[item.target.id] = str(after.value.value)
    return found


def _args_section(text: str) -> dict[str, str]:
    text = inspect.cleandoc(text)
    if "Args:\n" not in text:
        return {}
    body = re.split(r"\n(?=\S)", text.split("Args:\n", 1)[1])[0]
    return dict(re.findall(r"^ {4}(\w+): ((?:.|\n {8,})*)", body, re.MULTILINE))


def _type_words(hint: Any) -> str:
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        words = [_type_words(part) for part in inner if part is not type(None)]
        words = [w for w in dict.fromkeys(words) if w != "Tensor"]
        return " or ".join(words)
    if origin in (tuple, list):
        return f"list of {_type_words(inner[0])}s" if inner else "list"
    if origin is dict:
        return "table"
    plain = {int: "whole number", float: "number", str: "text", bool: "true or false"}
    return plain.get(hint, getattr(hint, "__name__", str(hint)))


def _limits(info: FieldInfo) -> str:
    words = {"ge": "{} or more", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
    found = [
        text.format(getattr(limit, name))
        for limit in info.metadata
        for name, text in words.items()
        if hasattr(limit, name)
    ]
    return "".join(f", {text}" for text in found)


def _field_default(item: Any) -> str:
    if item.default is not MISSING:
        return _default(item.default)
    if item.default_factory is not MISSING:
        return _default(item.default_factory())
    return "required"


def _default(value: Any) -> str:
    return "" if value is None else f"`{_value(value)}`"


def _value(value: Any) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(_value, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    cells = (" | ".join(cell.replace("|", "\\|") for cell in row) for row in lines)
    return "\n".join(f"| {line} |" for line in cells)


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


_MEANING = {
    "seed": "Random seed of batches, cohorts, the split over clients and the initial model.",
    "rounds": "R: number of rounds. The default is the task's.",
    "local_steps": "I: steps that a client takes between two exchanges. The default is the task's.",
    "iterations": "R·I, in place of `budget.rounds`: the rounds then follow from the local steps.",
    "kind": "Which clients take part in a round: all, some drawn anew, or groups in turn.",
    "task": "What is trained, on which data.",
}
_WRITTEN = {
    "name": ("a name from `episode list algorithms`, `file.py:NAME` or `module:NAME`", "`episode`",
             "The algorithm. Leave it out if you give a correction and a clipping."),
    "correction": ("`uncorrected`, `remembered`, `resampled`, `synchronous`, or your own", "",
                   "Where the anchor (G_r^i, G_r) comes from."),
    "clipping": ("`unclipped`, `per_step`, `episodic`, `guarded`, or your own", "",
                 "How long a step is. A table sets fields: `{ name = \"a.py:B\", c = 2 }`."),
    "trust": ("`full`, `measured`, or your own", "`full`",
              "λ, how much of the correction is believed: all of it, or what is measured. "
              "`measured` has two fields. `algorithm.trust.full_from` is the share of a client's "
              "deviation from which on it is believed in full, `algorithm.trust.lifetime` the "
              "number of clipped steps after which it is no longer believed."),
    "descent": ("`sgd`, `adamw`, or your own", "`sgd`",
                "What a client does with a gradient. `adamw` has fields: `algorithm.descent.beta1` "
                "and others."),
    "server": ("`mean`, `sgd`, `adam`, `adamw`, `adagrad`, `yogi`, or your own", "`mean`",
               "What is done with the mean of the clients' models. Its fields: "
               "`algorithm.server.rate` and others."),
}  # fmt: skip
