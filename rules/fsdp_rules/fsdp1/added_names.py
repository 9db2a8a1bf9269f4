"""The names that FSDP2's modules have and FSDP1's models have not (``added_names.toml``), as data."""

from __future__ import annotations

from functools import cache

from fsdp_rules.fsdp1.api import read_list


@cache
def added_names() -> frozenset[str]:
    """All of them, of every version of torch that has FSDP2."""
    return frozenset(read_list("added_names.toml")["names"])
