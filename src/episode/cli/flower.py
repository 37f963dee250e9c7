"""Commands for real sites: write an experiment as a Flower app, and run an app to its end."""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from episode.cli.commands import group
from episode.cli.flower_log import followed
from episode.cli.terminal import Quiet, Settings, err
from episode.errors import ClusterError, EpisodeError

app = group("Run an experiment at real sites with Flower.")


@app.command("app", epilog="Example: episode flower app my-app --set algorithm=episode")
def write(
    folder: Annotated[Path, typer.Argument(help="Where to write the app: a new folder.")],
    config: Annotated[
        Path | None, typer.Option(help="A TOML file; without it, defaults are used.")
    ] = None,
    settings: Settings = None,
) -> None:
    """Write an experiment as a Flower app, to be deployed with SuperLink and SuperNodes."""
    from episode.flower.app_files import write_app
    from episode.runs.config import read_experiment

    for path in write_app(folder, read_experiment(config, settings or [])):
        typer.echo(path)


@app.command(epilog="Example: episode flower run my-app my-superlink")
def run(
    folder: Annotated[Path, typer.Argument(help="The app's folder.")],
    superlink: Annotated[str, typer.Argument(help="Name of the SuperLink in Flower's config.")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--run-config",
            "-c",
            help="Override a setting of the app, as for flwr run: 'budget.rounds=5'.",
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="How many seconds to wait for the end of the run.")
    ] = 7 * 86400.0,
    quiet: Quiet = False,
) -> None:
    """Run an app, show its rounds, wait for its end, and fail if it fails (flwr run does not)."""
    from episode.flower.simulation import require_flower

    require_flower()
    if not (folder / "pyproject.toml").is_file():
        raise EpisodeError(
            f"{folder} is not a Flower app: write one with episode flower app {folder}"
        )
    options = [part for change in changes or [] for part in ("-c", change)]
    started = _flwr("run", str(folder), superlink, *options)
    number = str(started.get("run-id", ""))
    if not number:
        raise ClusterError(f"The run was not started: {json.dumps(started)[:500]}")
    typer.echo(f"Run {number} has started.", err=True)
    with nullcontext() if quiet else followed([_program(), "log", number, superlink], err.print):
        status = _final_status(number, superlink, seconds)
    if status != "finished:completed":
        log = _last_error(number, superlink)
        raise ClusterError(f"Run {number} has {status.replace(':', ': ')}. {log}")
    typer.echo(f"Run {number} is complete.")


OwnData = Annotated[
    Path | None, typer.Option(help="Folder of this site's own data; it never leaves the site.")
]
OwnVectors = Annotated[
    Path | None, typer.Option(help="File of word vectors here, if the experiment uses them.")
]
OwnVocabulary = Annotated[
    Path | None, typer.Option(help="File of words here, if the experiment uses one.")
]
Number = Annotated[int, typer.Option(help="This site's number, from 0; each site has its own.")]


@app.command(
    epilog="Example: episode flower site --superlink localhost:8000 --number 0 --of 3 --insecure "
    "--data examples/silos/north --dry-run"
)
def site(
    superlink: Annotated[str, typer.Option(help="Address of the SuperLink, as host:port.")],
    number: Number,
    of: Annotated[int, typer.Option(help="How many sites there are.")],
    data: OwnData = None,
    vectors: OwnVectors = None,
    vocabulary: OwnVocabulary = None,
    name: Annotated[
        str | None, typer.Option(help="Name of this site in tables; by default its folder's name.")
    ] = None,
    root_certificates: Annotated[
        Path | None, typer.Option(help="Certificate of the authority that signed the server's.")
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="This site's private key, whose public half is registered.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Connect without TLS: for trials on one machine.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(help="Port for this site's own processes; by default Flower's.")
    ] = None,
    secure: Annotated[
        bool,
        typer.Option("--secure", help="Answer only in masked sums: the run needs engine.secure."),
    ] = False,
    fingerprints: Annotated[
        Path | None, typer.Option(help="With --secure: list of all sites' key fingerprints.")
    ] = None,
    min_cohort: Annotated[
        int, typer.Option(help="With --secure: the smallest cohort to answer in, 3 or more.")
    ] = 3,
    state: Annotated[
        Path | None, typer.Option(help="With --secure: folder where this site keeps its state.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the command instead of running it.")
    ] = False,
) -> None:
    """Join a federation as one of its sites, with this site's own data.

    Starts Flower's SuperNode, which waits for work until it is stopped with Ctrl-C.
    """
    from episode.flower.simulation import QUIET, require_flower

    require_flower()
    if not 0 <= number < of:
        raise EpisodeError(f"--number is {number}: number the {of} sites from 0 to {of - 1}.")
    if insecure == (root_certificates is not None):
        raise EpisodeError(
            "Give --root-certificates, with which the server is known to be the right one, or "
            "--insecure for a trial on one machine."
        )
    own = {"data": data, "vectors": vectors, "vocabulary": vocabulary}
    paths = {k: str(_existing(k, path)) for k, path in own.items() if path is not None}
    config = {"partition-id": number, "num-partitions": of, **paths}
    if secure:
        config |= _secure_config(key, fingerprints, min_cohort, state)
    elif fingerprints or state or min_cohort != 3:
        raise EpisodeError("--fingerprints, --min-cohort and --state are for --secure: give it.")
    command = [_program("flower-supernode"), "--superlink", superlink]
    command += ["--insecure"] if insecure else ["--root-certificates", str(root_certificates)]
    command += ["--auth-supernode-private-key", str(key)] if key else []
    command += ["--port", str(port)] if port else []
    command += ["--node-config", _node_config(config | ({"name": name} if name else {}))]
    if dry_run:
        typer.echo(shlex.join(command))
        return
    os.execve(command[0], command, {**os.environ, **QUIET})


@app.command(
    epilog="Example: episode flower facts --set task=silos --set task.word_buckets=4096 "
    "--number 0 --data examples/silos/north"
)
def facts(
    number: Number,
    config: Annotated[
        Path | None, typer.Option(help="The experiment's TOML file; without it, defaults are used.")
    ] = None,
    settings: Settings = None,
    data: OwnData = None,
    vectors: OwnVectors = None,
    vocabulary: OwnVocabulary = None,
) -> None:
    """Print what this site would tell the server about its data before the first round.

    Nothing is sent: read it before you join.
    """
    from episode.runs.config import read_experiment

    experiment = read_experiment(config, settings or [])
    own = {"data": data, "vectors": vectors, "vocabulary": vocabulary}
    given = {k: str(_existing(k, path)) for k, path in own.items() if path is not None}
    if unknown := given.keys() - set(experiment.task.site_settings):
        raise EpisodeError(
            f"The task {experiment.task_name} has no --{min(unknown)}: leave it out."
        )
    typer.echo(json.dumps(experiment.task.facts(number, given, experiment.seed), indent=2))


def _secure_config(
    key: Path | None, fingerprints: Path | None, min_cohort: int, state: Path | None
) -> dict[str, Any]:
    """Return the settings of a site that answers only in masked sums."""
    from episode.flower.secure.keys import read_fingerprints, read_node_key

    if min_cohort < 3:
        raise EpisodeError(f"--min-cohort is {min_cohort}: it must be 3 or more.")
    found: dict[str, Any] = {"secure": True, "min-cohort": min_cohort}
    if key is not None:
        read_node_key(str(key))
        found["node-key"] = str(key.absolute())
    if fingerprints is not None:
        read_fingerprints(str(fingerprints))
        found["fingerprints"] = str(fingerprints.absolute())
    if state is not None:
        found["state"] = str(state.absolute())
    return found


def _existing(option: str, path: Path) -> Path:
    if not path.exists():
        raise EpisodeError(f"--{option} is {path}, which does not exist: give an existing path.")
    return path.absolute()


def _node_config(values: dict[str, Any]) -> str:
    """Return values as a SuperNode reads them, which cannot contain quotes."""
    for name, value in values.items():
        if isinstance(value, str) and set(value) & set("\"'\\\n"):
            raise EpisodeError(
                f"--{name} is {value!r}: Flower allows no quotes or backslashes in it."
            )
    return " ".join(f"{k}={json.dumps(v, ensure_ascii=False)}" for k, v in values.items())


def _final_status(number: str, superlink: str, seconds: float) -> str:
    """Wait for the end of a run, and return its status."""
    until, pause = time.monotonic() + seconds, 2.0
    while not (status := _status(number, superlink)).startswith("finished"):
        if time.monotonic() > until:
            raise ClusterError(f"Run {number} is still {status} after {seconds:g} s.")
        time.sleep(pause)
        pause = min(1.5 * pause, 15.0)  # each query starts a process
    return status


def _status(number: str, superlink: str) -> str:
    found = _flwr("list", superlink, "--run-id", number).get("runs") or [{}]
    return str(found[0].get("status", "unknown"))


def _last_error(number: str, superlink: str) -> str:
    """Return the last line of the run's log that names an error, and the lines indented below."""
    done = subprocess.run(
        [_program(), "log", number, superlink, "--show"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    lines = done.stdout.splitlines()
    found = [k for k, line in enumerate(lines) if "Error" in line]
    if not found:
        return f"See: flwr log {number} {superlink} --show"
    below = itertools.takewhile(lambda line: line[:1].isspace(), lines[found[-1] + 1 :])
    return " ".join(line.strip() for line in (lines[found[-1]], *below))[:1000]


def _flwr(*arguments: str) -> dict[str, Any]:
    from episode.flower.simulation import QUIET

    done = subprocess.run(
        [_program(), *arguments, "--format", "json"],
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    start = done.stdout.find("{")
    try:
        found: dict[str, Any] = json.loads(done.stdout[start:])
    except ValueError:
        words = (done.stderr or done.stdout).strip()[-500:]
        raise ClusterError(f"flwr {arguments[0]} failed: {words}") from None
    if found.get("success") is False:
        reason = found.get("error-message") or found.get("error") or "no reason given"
        lines = [line.strip() for line in str(reason).splitlines() if "Using SuperLink" not in line]
        words = " ".join(line for line in lines if line)
        if "Invalid run configuration" in words:
            words += (
                " Settings must be named in [tool.flwr.app.config] of the app's pyproject.toml."
            )
        raise ClusterError(f"flwr {arguments[0]} failed: {words}")
    return found


def _program(name: str = "flwr") -> str:
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if not found:
        raise EpisodeError(
            f"The {name} command is not installed: pip install 'episode-fl[flower]'."
        )
    return found
