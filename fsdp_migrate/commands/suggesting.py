"""The group of all commands: an unknown one is answered with the nearest."""

from __future__ import annotations

import difflib

import click


class Suggesting(click.Group):
    """A group that names the nearest command where there is none of a name."""

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As :class:`click.Group` does it. Raises :class:`click.UsageError`, which names what may have been meant."""
        name = args[0]
        if self.get_command(context, name) is None and not name.startswith("-"):
            near = difflib.get_close_matches(name.lower(), self.commands, n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}?" if near else "fsdp-migrate --help lists them"
            raise click.UsageError(f"No such command {name!r}; {hint}", context)
        return super().resolve_command(context, args)
