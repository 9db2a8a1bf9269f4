"""Says how an installed release of a framework differs from its table."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Collection, Mapping

from packaging.version import Version

from fsdp_rules.frameworks.table import Key, table


def installed(framework: str) -> Version:
    """The release that is installed here."""
    return Version(importlib.metadata.version({"composer": "mosaicml"}.get(framework, framework)))


def known(framework: str) -> dict[str, Key]:
    """The keys that the table gives to the installed release."""
    release = installed(framework)
    return {name: key for name, key in table(framework).keys.items() if not key.since or release >= Version(key.since)}


def difference(
    framework: str, expected: Collection[str], found: Collection[str], defaults: Mapping[str, str] | None = None
) -> str:
    """What the installed release has otherwise than the table, in a sentence; empty if nothing.

    ``defaults`` are those of the installed code, by key, as the table spells them.
    """
    said = []
    if new := sorted(set(found) - set(expected)):
        said.append(f"has new keys: {', '.join(new)}")
    if gone := sorted(set(expected) - set(found)):
        said.append(f"lacks keys: {', '.join(gone)}")
    keys = table(framework).keys
    moved = {name: value for name, value in (defaults or {}).items() if name in keys and keys[name].default != value}
    said += [f"has {value} for the default of {name}, not {keys[name].default}" for name, value in moved.items()]
    if not said:
        return ""
    release, proved = installed(framework), table(framework).proved
    kind = "a newer release than the table knows" if release > max(map(Version, proved)) else "a release of the table"
    return f"{framework} {release}, {kind} ({', '.join(proved)}), {'; '.join(said)}"
