"""The command ``skill``: how a coding agent works with this command, in the form of agentskills.io."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import click

from fsdp_migrate.commands.options import FORMAT

_HELP = """Print a SKILL.md that teaches a coding agent the loop of a migration: rewrite, next, edit, done, verify.

The file has the format of agentskills.io, which most agents read. With --write, it is written into the project: into
.agents/skills, and into .claude/skills if the project has a .claude folder. A file that exists with other content is
not changed.

\b
  fsdp-migrate skill             print it
  fsdp-migrate skill --write     write it into this project

\b
Exit code:
  0  it was printed, or is in the project
  2  it could not be written
"""

_NAME = "fsdp-migrate"


@click.command(help=_HELP, short_help="Print or write a skill for coding agents.")
@click.option("--write", "writes", is_flag=True, help="Write it into the project instead of printing it.")
@FORMAT
def skill(writes: bool, form: str) -> int:
    from fsdp_migrate.report.document import document
    from fsdp_migrate.report.summary import printable
    from fsdp_migrate.tree import writing
    from fsdp_migrate.tree.own_folder import project_root

    text = (files("fsdp_migrate.commands") / "SKILL.md").read_text(encoding="utf-8")
    if not writes:
        click.echo(text if form == "text" else document("skill", {"text": text, "written": []}), nl=False)
        return 0
    root = project_root(Path.cwd())
    hosts = [".agents", *([".claude"] if (root / ".claude").is_dir() else [])]
    places = [root / host / "skills" / _NAME / "SKILL.md" for host in hosts]
    for place in places:
        if place.exists() and place.read_bytes() != text.encode():
            raise click.ClickException(
                f"{place} exists with other content and was not changed: remove it, or compare it with "
                f"fsdp-migrate skill"
            )
    for place in places:
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            writing.replace(place, text.encode())
        except OSError as error:
            raise click.ClickException(f"could not write {place}: {error.strerror or error}") from error
        if form == "text":
            click.echo(printable(f"{place}: written"))
    if form == "json":
        click.echo(document("skill", {"text": text, "written": list(map(str, places))}), nl=False)
    return 0
