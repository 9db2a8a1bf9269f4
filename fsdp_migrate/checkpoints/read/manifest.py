"""The manifest that a conversion puts beside its tensors: their SHA-256, and what was found about its source."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from typing import Any

from fsdp_migrate.checkpoints.entries import BadCheckpoint, Key
from fsdp_migrate.checkpoints.read.archive import first_bytes, whole
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint
from fsdp_migrate.checkpoints.read.find import Kind, leads_out
from fsdp_rules.verdict.finding import Level


@dataclass(frozen=True)
class Evidence:
    """What was found about the source of a conversion, and holds for its result too."""

    rule: str
    level: str
    message: str
    advice: str


@dataclass(frozen=True)
class Manifest:
    """What it says of each tensor, by its key, and what was found about the source of the conversion."""

    tensors: dict[Key, dict[str, Any]]
    source: tuple[Evidence, ...] = ()


VERSION = 1
#: A file of a folder, or a record in the archive of torch.save.
NAME = "fsdp-migrate-manifest.json"
#: A line of it has a key, which may be long; one that is larger is none of this tool's.
_LIMIT = 2**20
_LIMIT_EACH = 2**14


def read(checkpoint: Checkpoint) -> Manifest | None:
    """The manifest of ``checkpoint``; None where it has none. Raises :class:`BadCheckpoint` for one that is broken."""
    try:
        content = _content(checkpoint)
        if content is None:
            return None
        held = json.loads(content)
        if held["version"] != VERSION:
            raise ValueError(f"version {held['version']!r}")
        told = {tuple(one["key"]): one for one in held["tensors"]}
        if any(not {"dtype", "shape", "sha256"} <= one.keys() for one in told.values()):
            raise ValueError("a tensor without dtype, shape or digest")
        source = tuple(Evidence(**one) for one in held.get("source", ()))
        if any(not isinstance(text, str) for one in source for text in vars(one).values()):
            raise ValueError("a finding that is not text")
        if any(one.level not in list(Level) for one in source):
            raise ValueError("a finding with an unknown level")
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadCheckpoint(f"{checkpoint.path}: {NAME} is not a manifest of fsdp-migrate: {error}") from error
    return Manifest(told, source)


def _content(checkpoint: Checkpoint) -> bytes | None:
    limit = _LIMIT + _LIMIT_EACH * len(checkpoint.entries)
    if checkpoint.found.kind is Kind.FILE:
        if not any(NAME in file.records for file in checkpoint.ranks.values()):
            return None
        with zipfile.ZipFile(checkpoint.path) as archive:
            (info,) = (one for one in archive.infolist() if one.filename.rpartition("/")[2] == NAME)
            size, content = info.file_size, archive.read(info) if info.file_size <= limit else b""
    else:
        folder = checkpoint.path if checkpoint.found.kind is Kind.DCP else checkpoint.path.parent
        path = folder / NAME
        if not path.is_file() or leads_out(path, folder):
            return None
        size = path.stat().st_size
        content = first_bytes(whole(path), limit)
    if size > limit:
        raise ValueError(f"it has {size:,} bytes")
    return content
