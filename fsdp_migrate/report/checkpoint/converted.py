"""What ``checkpoint convert`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.filesize import decimal

from fsdp_migrate.checkpoints.convert.convert import Converted
from fsdp_migrate.checkpoints.convert.state import State
from fsdp_migrate.checkpoints.convert.target import nbytes_of
from fsdp_migrate.checkpoints.entries import tensors
from fsdp_migrate.report.document import document
from fsdp_migrate.report.summary import printable


def converted(done: Converted) -> str:
    """What was written, what differs from the source, and how to load it."""
    said = f"wrote {done.target}: {_many(done.count)}, {decimal(done.nbytes)}, read again and equal to {done.source}"
    return "\n".join(map(printable, [said, *_listed(done.notes), *f"load it with: {done.line}".split("\n")]))


def prepared(state: State, target: Path) -> str:
    """The same of what would be written."""
    count = len(list(tensors(state.entries)))
    said = f"would write {target}: {_many(count)}, {decimal(nbytes_of(state))}"
    return "\n".join(map(printable, [said, *_listed(state.notes)]))


def as_json(done: Converted | State, target: Path) -> str:
    """The same for programs; ``load`` is None where nothing is written."""
    if isinstance(done, Converted):
        written, count, nbytes, load = True, done.count, done.nbytes, done.line
    else:
        written, count, nbytes, load = False, len(list(tensors(done.entries))), nbytes_of(done), None
    content = {"target": target.as_posix(), "written": written, "tensors": count, "bytes": nbytes}
    return document("checkpoint convert", {**content, "notes": list(done.notes), "load": load}).rstrip("\n")


def _listed(notes: Sequence[str]) -> list[str]:
    return [f"  {note}" for note in notes]


def _many(count: int) -> str:
    return f"{count} tensor{'s' * (count != 1)}"
