"""Groups of commands that name the nearest command to one that does not exist."""

from __future__ import annotations

import typer
from click import Command, Context
from typer.core import TyperGroup

from episode.errors import unknown


class Commands(TyperGroup):
    """A group of commands; a name that is none of them is one sentence, with one suggestion."""

    def resolve_command(
        self, ctx: Context, args: list[str]
    ) -> tuple[str | None, Command | None, list[str]]:
        """Find the command that the first argument names."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            # Not click's own sentence: typer and click would each add a suggestion to it.
            ctx.fail(str(unknown("command", args[0], self.list_commands(ctx))))
        return super().resolve_command(ctx, args)


def group(help: str) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        help=help,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
    )
