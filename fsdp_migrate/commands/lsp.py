"""The command ``lsp``; as in :mod:`fsdp_migrate.cli`, what it needs is imported when it runs."""

from __future__ import annotations

import os

import click


@click.command(short_help="Run a language server, for editors.")
def lsp() -> int:
    """Run a language server on standard input and output: diagnostics, quick fixes, and rule pages on hover.

    An editor starts it, see docs/editors.md. It needs the extra [lsp] of fsdp-migrate.
    """
    try:
        from fsdp_migrate.lsp.server import server
    except ModuleNotFoundError as error:
        raise click.ClickException(f"lsp needs {error.name}: install fsdp-migrate with its extra [lsp]") from error
    # It closes its streams at the end, which are not those of the process then.
    server.start_io(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
    return 0
