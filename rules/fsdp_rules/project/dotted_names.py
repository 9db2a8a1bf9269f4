"""Functions and classes of a tree by their dotted names, which an import may start anywhere in."""

from __future__ import annotations

from collections.abc import Mapping

from fsdp_rules.project.facts import FileFacts
from fsdp_rules.project.places import module_name

#: A function or class: the facts of its file, and its qualified name there.
Found = tuple[FileFacts, str]


def end_of(full: str) -> str:
    """The last two parts of a dotted name."""
    return ".".join(full.rsplit(".", 2)[-2:])


def named(full: str, by_name: Mapping[str, list[Found]], by_end: Mapping[str, list[Found]]) -> list[Found]:
    """Those with the dotted name ``full``, or with one that ends with it."""
    return [
        entry
        for entry in (by_end.get(end_of(full), ()) if "." in full else by_name.get(full, ()))
        if is_at(entry, full)
    ]


def is_at(found: Found, full: str) -> bool:
    """Whether ``full`` is the dotted name of ``found``, or what that ends with."""
    file, qualified = found
    own = f"{file.module}.{qualified}"
    return own == full or own.endswith(f".{full}")


def nearest(path: str, full: str, found: list[Found]) -> list[Found]:
    """Those of ``found``, in modules that an import of ``full`` may mean, whose import starts nearest above ``path``.

    A repository often holds several programs, each with a ``util`` of its own beside its main file.
    """
    if len(found) < 2:
        return found
    folder = module_name(path).split(".")[:-1]
    starts: dict[tuple[str, str], int] = {}
    for file, qualified in found:
        start = f"{file.module}.{qualified}".removesuffix(full).rstrip(".")
        parts = start.split(".") if start else []
        starts[file.path, qualified] = len(parts) if parts == folder[: len(parts)] else -1
    best = max(starts.values())
    return [(file, qualified) for file, qualified in found if starts[file.path, qualified] == best]
