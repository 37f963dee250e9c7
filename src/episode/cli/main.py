"""Entry point of the command line. Results go to stdout, progress and messages to stderr.

Exit codes: 0 done; 1 the run failed or a check did not hold; 2 a mistake in the request.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, NoReturn

import typer

from episode.cli import data, flower, paper, results, run, studies, theory
from episode.cli.commands import group
from episode.cli.terminal import err, out
from episode.errors import ClientError, ClusterError, EpisodeError, is_too_large
from episode.version import __version__

app = group("Federated training that does not blow up: EPISODE and its family of algorithms.")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        out.print(__version__)
        raise typer.Exit


run.register(app)
data.register(app)
app.add_typer(flower.app, name="flower")
results.register(app)
studies.register(app)
paper.register(app)
theory.register(app)


def main() -> NoReturn:
    """Run the command line; a user's mistake gives one sentence and exit code 2, no traceback."""
    warnings.showwarning = lambda message, *_: err.print(f"Warning: {message}")
    data.show_log(err)
    try:
        app(standalone_mode=True)
    except (ClientError, ClusterError) as error:  # these may be caused by a user's mistake
        _fail(str(error), 2 if isinstance(error.__cause__, EpisodeError) else 1)
    except EpisodeError as error:
        _fail(str(error), 2)
    except (MemoryError, RuntimeError) as error:
        if not is_too_large(error):
            raise
        _fail("There is not enough memory for this on this machine: choose smaller sizes.", 1)
    except OSError as error:
        _fail(f"{error.strerror or error}: {error.filename or ''}".rstrip(": "), 1)
    sys.exit(0)


def _fail(message: str, code: int) -> NoReturn:
    rank = os.environ.get("RANK")
    where = f" on rank {rank}" if rank and not message.startswith("Rank ") else ""
    err.print(f"Error{where}: {message}")
    sys.exit(code)
