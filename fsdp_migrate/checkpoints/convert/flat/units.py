"""The units of FSDP, each with a flat parameter, and which parameters belong to which."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fsdp_migrate.checkpoints.convert.flat.template import Template
from fsdp_migrate.checkpoints.entries import Key, TensorEntry, spelled


@dataclass(frozen=True)
class Unit:
    """The module ``prefix``, ``""`` for the whole model, whose flat parameter is ``flat``, under ``key``."""

    prefix: str
    key: Key
    flat: TensorEntry

    @property
    def name(self) -> str:
        """The key with dots."""
        return spelled(self.key)


def around(prefixes: Iterable[str], name: str) -> str | None:
    """The innermost of the modules ``prefixes`` that ``name`` lies in."""
    outer = [prefix for prefix in prefixes if not prefix or name.startswith(f"{prefix}.")]
    return max(outer, key=len, default=None)


def members(prefixes: Iterable[str], template: Template) -> Mapping[str, list[str]]:
    """The template's names per unit, in its order; names of a parameter that has another one in its unit are not there.

    A parameter that two units share has been flattened by both.
    """
    prefixes = list(prefixes)
    homes = {name: around(prefixes, name) for name in template.shapes}
    found: dict[str, list[str]] = {prefix: [] for prefix in prefixes}
    for name, home in homes.items():
        first = template.ties.get(name)
        if home is not None and (first is None or homes[first] != home):
            found[home].append(name)
    return found
