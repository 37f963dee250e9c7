"""Write an experiment as an app that SuperLink and SuperNodes can run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from episode.errors import EpisodeError
from episode.flower.app import check_app, run_config
from episode.runs.config import Experiment
from episode.version import __version__

PACKAGE = "episode_app"
LONGEST_NAME = 32
"""Flower's limit on the length of an app's name."""


def write_app(folder: Path, experiment: Experiment) -> list[Path]:
    """Write the app's files into a new folder and return their paths."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise EpisodeError(f"{folder} is not empty: choose a new folder for the app.")
    experiment = replace(experiment, engine=replace(experiment.engine, name="flower"))
    check_app(experiment)
    experiment.plan()
    name = _name(experiment)
    settings = run_config(experiment)
    config = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    texts = {
        "pyproject.toml": _template("pyproject.txt").format(
            name=name, version=__version__, package=PACKAGE, config=config
        ),
        f"{PACKAGE}/__init__.py": f'"""{name}, on Flower."""\n',
        f"{PACKAGE}/server_app.py": _MODULE.format(side="server", what="The server: it"),
        f"{PACKAGE}/client_app.py": _MODULE.format(side="client", what="A site: it"),
        "README.md": _template("readme.txt").format(name=name, data=_data_option(experiment)),
    }
    files = []
    try:
        for path, text in texts.items():
            files.append(folder / path)
            files[-1].parent.mkdir(parents=True, exist_ok=True)
            files[-1].write_text(text)
    except OSError as error:
        raise EpisodeError(f"{folder} cannot be written: {error.strerror}.") from None
    return files


def _name(experiment: Experiment) -> str:
    """Return a name of letters, digits and hyphens that is short enough for Flower."""
    words = f"episode-{experiment.task_name}-{experiment.algorithm.label}"
    return re.sub(r"[^A-Za-z0-9]+", "-", words)[:LONGEST_NAME].strip("-")


def _data_option(experiment: Experiment) -> str:
    return " --data ./our-data" if "data" in experiment.task.site_settings else ""


def _template(name: str) -> str:
    return (Path(__file__).parent / "template" / name).read_text()


_MODULE = '''\
"""{what} finds the experiment in the run's config."""

from episode.flower.app import {side}_app

app = {side}_app()
'''
