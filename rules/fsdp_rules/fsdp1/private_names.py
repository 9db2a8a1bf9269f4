"""The names of FSDP1's machinery and what FSDP2 has for each (``private_names.toml``), as data."""

from __future__ import annotations

from functools import cache

from fsdp_rules.fsdp1.api import read_list


@cache
def private_names(kind: str) -> dict[str, str]:
    """The advice for each name of a ``kind``: ``functions``, ``attributes``, ``public`` attributes, or ``takers``."""
    tables = read_list("private_names.toml")
    return {name: tables["advice"].get(text, text) for name, text in tables[kind].items()}


def advice(name: str) -> str:
    """A text that several names share."""
    return private_names("advice")[name]
