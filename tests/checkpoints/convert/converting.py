"""A conversion as the command does it, without a bar."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fsdp_migrate.checkpoints.convert.convert import SHARD_SIZE, Converted, convert
from fsdp_migrate.checkpoints.convert.plan import Target, Wanted


def converted(source: Path, target: Path, to: Target, shard_size: int = SHARD_SIZE, **wanted: Any) -> Converted:
    """What :func:`convert` gives; ``wanted`` are the fields of :class:`Wanted` besides ``to``."""
    return convert(source, target, Wanted(to, **wanted), lambda label, nbytes: lambda count: None, shard_size)
