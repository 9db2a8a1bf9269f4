"""The command line: options in, exit code out. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from fsdp_migrate.commands.check import check
from fsdp_migrate.commands.checkpoint import checkpoint
from fsdp_migrate.commands.lsp import lsp
from fsdp_migrate.commands.mcp import mcp
from fsdp_migrate.commands.one_by_one import done, next_item
from fsdp_migrate.commands.options import show_error
from fsdp_migrate.commands.preflight import preflight
from fsdp_migrate.commands.rewrite import rewrite
from fsdp_migrate.commands.rules import rules
from fsdp_migrate.commands.skill import skill
from fsdp_migrate.commands.status import status
from fsdp_migrate.commands.stopping import clear_up_when_stopped
from fsdp_migrate.commands.suggesting import Suggesting
from fsdp_migrate.commands.trace import trace
from fsdp_migrate.commands.tune import tune
from fsdp_migrate.commands.undo import undo
from fsdp_migrate.commands.verify import verify
from fsdp_migrate.commands.whole_migration import migrate

OK, FAILURE, INTERRUPTED = 0, 2, 130

_HELP = """Move a PyTorch FSDP1 training codebase to FSDP2 with the same loss curve.

\b
  fsdp-migrate migrate -- torchrun ... trace, rewrite and verify a training
  fsdp-migrate rewrite --diff src/     see what would change
  fsdp-migrate rewrite src/            change it
  fsdp-migrate undo                    restore the replaced files
  fsdp-migrate check src/ checkpoints/ fail if FSDP1 code remains, for CI
  fsdp-migrate rules                   list the rules about FSDP1
  fsdp-migrate explain FSDP102         explain one rule, with an example
  fsdp-migrate status                  show how much is migrated
  fsdp-migrate next                    show the next place to do by hand
  fsdp-migrate done ID                 check it and show what remains
  fsdp-migrate skill --write           write a skill for coding agents
  fsdp-migrate trace -- torchrun ...   record a run, for use by rewrite
  fsdp-migrate verify -- torchrun ...  prove that your run trains the same
  fsdp-migrate preflight -- torchrun   look at the model before the first step
  fsdp-migrate tune -- torchrun ...    predict time and memory of layouts
  fsdp-migrate checkpoint inspect DIR  show what it contains and how it loads
"""


@click.group(
    cls=Suggesting,
    help=_HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="fsdp-migrate", message="%(prog)s %(version)s")
def cli() -> None:
    return


cli.add_command(check)
cli.add_command(checkpoint)
cli.add_command(done)
cli.add_command(lsp)
cli.add_command(mcp)
cli.add_command(migrate)
cli.add_command(next_item)
cli.add_command(preflight)
cli.add_command(rewrite)
cli.add_command(rules)
cli.add_command(rules, "explain")
cli.add_command(skill)
cli.add_command(status)
cli.add_command(trace)
cli.add_command(tune)
cli.add_command(undo)
cli.add_command(verify)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with these arguments (None: those of the process); the exit code."""
    try:
        words = sys.argv[1:] if argv is None else list(argv)
        code = cli.main(args=words, prog_name="fsdp-migrate", standalone_mode=False, obj=words)
    except click.ClickException as error:
        show_error(error)
        return FAILURE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted: nothing was written", err=True)
        return INTERRUPTED
    return int(code or OK)


def entry_point() -> None:
    """What the installed command runs."""
    if sys.stdout is None or sys.stderr is None:
        # Python has no stream for a descriptor that the caller has closed.
        if sys.stderr is not None:
            click.echo("Error: standard output is closed, so the result cannot be written", err=True)
        sys.exit(FAILURE)
    if sys.stdin is None:
        # An empty one in its place, also for the commands that are started.
        sys.stdin = open(os.devnull)  # noqa: PTH123, SIM115
    clear_up_when_stopped()
    for stream in (sys.stdout, sys.stderr):
        # A message may hold characters of the user's source that this terminal cannot show.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = main()
        sys.stdout.flush()
    except OSError as error:
        code = _unsaid(error)
    sys.exit(code)


def _unsaid(error: OSError) -> int:
    """Standard output is full, for example: an answer that nobody got must not pass for one."""
    click.echo(f"Error: could not write the result: {error.strerror or error}", err=True)
    # Python writes what is left when it ends, and would fail once more.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return FAILURE
