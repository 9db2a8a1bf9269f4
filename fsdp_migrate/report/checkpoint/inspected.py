"""What ``checkpoint inspect`` prints: text for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from fsdp_migrate.checkpoints import traits
from fsdp_migrate.checkpoints.entries import ITEM_SIZES, TensorEntry, spelled, tensors
from fsdp_migrate.checkpoints.judge import loading
from fsdp_migrate.checkpoints.judge.dating import torch_versions
from fsdp_migrate.checkpoints.judge.judge import judge
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.report.document import document
from fsdp_migrate.report.summary import printable

#: The tensors that a table shows without ``--all``.
MOST_ROWS = 20
MOST_TIES = 5


def render_json(checkpoints: Sequence[Checkpoint]) -> str:
    """All that is known, as JSON; sizes in bytes."""
    return document("checkpoint inspect", {"checkpoints": [_as_data(checkpoint) for checkpoint in checkpoints]})


def show(checkpoints: Sequence[Checkpoint], console: Console, everything: bool) -> None:
    """Print each checkpoint: what it is, its tensors, and what to know before loading it."""
    for number, checkpoint in enumerate(checkpoints):
        if number:
            console.print()
        console.print(_shown(checkpoint, everything), soft_wrap=True)


def _as_data(checkpoint: Checkpoint) -> dict[str, Any]:
    versions = torch_versions(checkpoint)
    return {
        "path": checkpoint.path.as_posix(),
        "kind": checkpoint.found.kind.value,
        "description": loading.kind_in_words(checkpoint),
        "layout": checkpoint.found.layout or None,
        "written_by": {"oldest_torch": versions.oldest, "newest_torch": versions.newest},
        "world_size": checkpoint.world_size,
        "files": [file.as_posix() for file in checkpoint.found.files],
        "tensors": [
            {
                "key": list(key),
                "shape": list(entry.shape),
                "dtype": entry.dtype,
                "bytes": entry.nbytes,
                "saved_as": entry.kind,
                "chunks": len(entry.chunks),
            }
            for key, entry in tensors(checkpoint.entries)
        ],
        "optimizers": [
            {"key": list(optimizer.prefix), "keyed_by": optimizer.keyed_by, "param_groups": optimizer.groups}
            for optimizer in traits.optimizers(checkpoint.entries)
        ],
        "ties": [[list(key) for key in keys] for keys in checkpoint.ties],
        "differing_by_rank": [list(key) for key in checkpoint.rankwise],
        "findings": [
            {"rule": finding.rule, "level": finding.level.value, "message": finding.message, "advice": finding.advice}
            for finding in judge(checkpoint)
        ],
        "traps": [{"name": trap.name, "sentence": trap.sentence} for trap in loading.traps(checkpoint)],
        "load": loading.line(checkpoint),
    }


def _shown(checkpoint: Checkpoint, everything: bool) -> RenderableType:
    found = list(tensors(checkpoint.entries))
    parts: list[RenderableType] = [Text(printable(str(checkpoint.path)), style="bold"), _facts(checkpoint, found)]
    if found:
        parts.append(_table(found if everything else found[:MOST_ROWS]))
    if len(found) > MOST_ROWS and not everything:
        parts.append(Text(f"  and {len(found) - MOST_ROWS} more tensors; --all shows them"))
    # Several states of one parameter that are one tensor are a finding of their own.
    lost = set(traits.shared_moments(checkpoint.entries))
    ties = [keys for keys in checkpoint.ties if not any(key[:-1] in lost for key in keys)]
    for keys in ties if everything else ties[:MOST_TIES]:
        parts.append(Text(printable(f"  tied: {' = '.join(map(spelled, keys))}")))
    if len(ties) > MOST_TIES and not everything:
        parts.append(Text(f"  and {len(ties) - MOST_TIES} more ties; --all shows them"))
    for finding in judge(checkpoint):
        parts.append(Text(printable(f"  {finding.rule} {finding.level.value}: {finding.message}")))
        parts.append(Text(printable(f"      {finding.advice}")))
    parts += [Text(f"  trap: {trap.sentence}") for trap in loading.traps(checkpoint)]
    first, *more = loading.line(checkpoint).split("\n")
    parts += [Text(printable(line)) for line in (f"  load: {first}", *(f"        {line}" for line in more))]
    return Group(*parts)


def _facts(checkpoint: Checkpoint, found: Sequence[tuple[Any, TensorEntry]]) -> RenderableType:
    layout = f", laid out by {checkpoint.found.layout}" if checkpoint.found.layout else ""
    total = sum(entry.nbytes for _, entry in found)
    lines = [
        f"  kind: {loading.kind_in_words(checkpoint)}{layout}",
        f"  written by: {torch_versions(checkpoint)}",
        f"  ranks: {checkpoint.world_size or 'not told'}",
        f"  tensors: {len(found)}, {size(total)}",
    ]
    for optimizer in traits.optimizers(checkpoint.entries):
        keyed = "parameter names" if optimizer.keyed_by == "fqn" else "parameter ids"
        groups = f"{optimizer.groups} param group{'s' * (optimizer.groups != 1)}"
        lines.append(f"  optimizer: {spelled(optimizer.prefix) or 'at the root'}, keyed by {keyed}, {groups}")
    return Text("\n".join(map(printable, lines)))


def _table(found: Sequence[tuple[Any, TensorEntry]]) -> Table:
    table = Table(box=None, pad_edge=True, padding=(0, 1))
    table.add_column("tensor", overflow="fold")
    table.add_column("shape")
    table.add_column("dtype")
    table.add_column("bytes", justify="right")
    table.add_column("saved as")
    for key, entry in found:
        shape = "x".join(map(str, entry.shape)) or "scalar"
        amount = size(entry.nbytes) if entry.dtype in ITEM_SIZES else "?"
        parts = f"{len(entry.chunks)} parts" if len(entry.chunks) > 1 else ""
        kind = entry.kind if entry.kind != "plain" else ""
        table.add_row(
            Text(printable(spelled(key))), shape, printable(entry.dtype), amount, ", ".join(filter(None, (kind, parts)))
        )
    return table


def size(count: int) -> str:
    """``count`` bytes in the unit in which people read it: ``1.5 GiB``."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{count} B" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"
