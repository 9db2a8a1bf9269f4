"""The list of FSDP1's public names and their verdicts (``api.toml``), as data."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

VERDICTS = ("exact", "emulated", "no-op", "refused")
#: What kinds of names there are, in the order of the list, with the heading that each has in the documentation.
KINDS = {
    "argument": "Arguments",
    "method": "Methods",
    "field": "Fields",
    "value": "Values",
    "class": "Classes",
    "policy": "Wrapping",
}


@dataclass(frozen=True)
class Entry:
    """One FSDP1 name: ``owner`` is the class it belongs to, or the part of the package for what is imported itself."""

    kind: str
    owner: str
    name: str
    fsdp2: str
    rewriter: str
    rule: str
    shim: str
    torch: str
    note: str


def read_list(name: str) -> dict[str, Any]:
    """The tables of one of the lists that stand in this folder."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    tables: dict[str, Any] = toml.loads(files("fsdp_rules.fsdp1").joinpath(name).read_text(encoding="utf-8"))
    return tables


@cache
def entries() -> tuple[Entry, ...]:
    """All entries, in the order of the list."""
    tables = read_list("api.toml")
    return tuple(
        Entry(kind=kind, owner=owner, name=name, **fields)
        for kind, owners in tables.items()
        for owner, names in owners.items()
        for name, fields in names.items()
    )


@cache
def parameters(owner: str) -> tuple[str, ...]:
    """The constructor's parameters of the FSDP1 class ``owner``, in torch's own order."""
    return tuple(entry.name for entry in entries() if entry.kind == "argument" and entry.owner == owner)
