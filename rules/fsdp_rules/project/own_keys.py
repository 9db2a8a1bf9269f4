"""Keys of a project's own settings that its code gives to arguments of FSDP1 which FSDP2 does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from fsdp_rules.project.walking import walk

#: Arguments of FSDP1's constructor that are left out of its calls.
GONE = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params")
_SPEAKS = re.compile(rb"(?i)fsdp")
_ANY = re.compile("|".join(GONE).encode())
#: Functions that read a key by its name.
_READERS = frozenset({"get", "getattr", "select"})


@dataclass(frozen=True)
class OwnKey:
    """The key under ``names`` of the settings called ``holder``, which some code gives to ``argument``."""

    holder: str
    names: tuple[str, ...]
    argument: str

    def is_at(self, path: tuple[str, ...]) -> bool:
        """Whether the key under the nested keys ``path`` of a file may be this one.

        A file may hold a part of the settings, and a name a part of a file.
        """
        shared = min(len(path), len(self.names))
        if not path or path[-shared:] != self.names[-shared:]:
            return False
        # What the file has above that is what the settings are called, as in `fsdp_cfg`.
        return len(path) <= len(self.names) or path[-shared - 1].lower() in self.holder.lower()


@lru_cache(maxsize=512)
def own_keys(data: bytes) -> tuple[OwnKey, ...]:
    """The keys that the source ``data`` reads for such arguments; none where it does not parse."""
    if not _ANY.search(data) or not _SPEAKS.search(data):
        return ()
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    return tuple(dict.fromkeys(_keys(tree)))


def _keys(tree: ast.Module) -> Iterator[OwnKey]:
    assigned: dict[str, list[ast.expr]] = {}
    for node in walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(node.value)
    for argument, value in _given(tree):
        several = assigned.get(value.id, []) if isinstance(value, ast.Name) else []
        made = several[0] if len(several) == 1 else value
        for holder, names in _read(made):
            yield OwnKey(holder, names, argument)


def _given(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    """What the file gives to each such argument: in a call, a dictionary, or a key of one."""
    for node in walk(tree):
        if isinstance(node, ast.keyword) and node.arg in GONE:
            yield node.arg, node.value
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value in GONE:
                    yield key.value, value
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            inner = node.targets[0].slice
            if isinstance(inner, ast.Constant) and inner.value in GONE:
                yield inner.value, node.value


def _read(node: ast.expr) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The settings that an expression reads: the name that holds them, and the keys below it."""
    found = _chain(node)
    if found is not None and len(found) > 1:
        names = found[1:] if found[0] == "self" else found
        if len(names) > 1 and not names[-1].isupper():
            yield names[0], tuple(names[1:])
        return
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield from _read(child)


def _chain(node: ast.expr) -> list[str] | None:
    """``cfg.a["b"].get("c")`` as its names, None for any other expression."""
    match node:
        case ast.Name():
            return [node.id]
        case ast.Attribute():
            above = _chain(node.value)
            return [*above, node.attr] if above else None
        case ast.Subscript(slice=ast.Constant(value=str() as name)):
            above = _chain(node.value)
            return [*above, name] if above else None
        case ast.Call(func=ast.Attribute(attr="get", value=value), args=[ast.Constant(value=str() as name), *_]):
            above = _chain(value)
            return [*above, name] if above else None
        case ast.Call(func=func, args=[value, ast.Constant(value=str() as name), *_]):
            called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            above = _chain(value) if called in _READERS else None
            return [*above, *name.split(".")] if above else None
    return None
