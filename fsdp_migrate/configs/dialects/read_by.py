"""Which of a project's own settings its code gives to arguments of FSDP1 that are gone."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_rules.configuration.block import Plain
from fsdp_rules.project.own_keys import OwnKey


def read_by(
    path: tuple[str, ...], keys: Mapping[str, tuple[OwnKey, ...]], is_json: bool = False
) -> dict[str, Plain] | None:
    """What code gives the key under ``path`` to, and where; None where none of ``keys`` is that one."""
    for file, found in keys.items():
        for one in found:
            # A vocabulary in JSON has every word for a key.
            if one.is_at(path) and not (is_json and len(path) == 1):
                return {"argument": one.argument, "where": file}
    return None
