"""Keys of a project's own settings that its code gives to arguments of FSDP1 which FSDP2 does not have."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from fsdp_rules.project.walking import children, last_name_of, walk

#: Arguments of FSDP1's constructor that are left out of its calls.
GONE = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params")
_SPEAKS = re.compile(rb"(?i)fsdp")
_ANY = re.compile("|".join(GONE).encode())
#: Functions that read a key by its name.
_READERS = frozenset({"get", "getattr", "select"})


@dataclass(frozen=True)
class OwnKey:
    """The key under ``names`` of the settings called ``holder``, which the code at ``place`` gives to ``argument``."""

    holder: str
    names: tuple[str, ...]
    argument: str
    place: tuple[int, int] = (0, 0)

    def is_at(self, path: tuple[str, ...]) -> bool:
        """Whether the key under the nested keys ``path`` of a file may be this one.

        A file may hold a part of the settings, and a name a part of a file.
        """
        shared = min(len(path), len(self.names))
        if not path or path[-shared:] != self.names[-shared:]:
            return False
        # What the file has above that is what the settings are called, as in `fsdp_cfg`.
        return len(path) <= len(self.names) or path[-shared - 1].lower() in self.holder.lower()

    def spelled(self) -> tuple[str, str]:
        """The key as a field and as an option of a parser."""
        return self.names[-1], self.names[-1].replace("_", "-")

    def is_field_of(self, owner: str | None, text: str) -> bool:
        """Whether the class ``owner`` may be what has this key, by its name or by what ``text`` says of its fields.

        None stands for no class: options of a parser are held by one name, whatever it is.
        """
        if len(self.names) == 1:
            return self.holder == owner or not self.holder[:1].isupper()
        above = self.names[-2]
        alike = owner is not None and above.replace("_", "").lower() in owner.lower()
        return alike or bool(owner and re.search(rf"\b{above}\s*:[^=\n]*\b{owner}\b", text))


@dataclass(frozen=True)
class _Passed:
    """The parameter ``name`` of ``function``, a class for its constructor, which is given to ``argument``.

    ``position``: that of positional arguments of its callers; None where it takes none there.
    """

    function: str
    name: str
    position: int | None
    argument: str


def own_keys_of(files: Mapping[str, bytes]) -> dict[str, tuple[OwnKey, ...]]:
    """The keys that Python ``files`` read for such arguments alone, by path, also through functions of other files."""
    found: dict[str, list[OwnKey]] = {}
    passed: list[_Passed] = []
    for path, data in files.items():
        keys, more = _of_file(data)
        found.setdefault(path, []).extend(keys)
        passed += more
    known = set(passed)
    while passed:
        one = passed.pop()
        word = one.function.encode()
        for path, data in files.items():
            for each in _of_callers(data, one) if word in data else ():
                if isinstance(each, OwnKey):
                    found[path].append(each)
                elif each not in known:
                    known.add(each)
                    passed.append(each)
    others = _read_otherwise(found, files)
    meant = {path: [key for key in keys if key.names[-1] not in others] for path, keys in found.items()}
    return {path: tuple(dict.fromkeys(keys)) for path, keys in meant.items() if keys}


def _read_otherwise(found: Mapping[str, list[OwnKey]], files: Mapping[str, bytes]) -> set[str]:
    """Those of the keys' last names that the files read for something else, too, so that the key goes on to count."""
    names = {key.names[-1] for keys in found.values() for key in keys}
    places = {(path, key.place) for path, keys in found.items() for key in keys}
    word = re.compile("|".join(map(re.escape, sorted(names))).encode())
    others: set[str] = set()
    for path, data in files.items() if names else ():
        read = _parsed(data) if word.search(data) else None
        given = {id(node) for _, value in _given(read.tree) for node in walk(value)} if read is not None else set()
        for node in walk(read.tree) if read is not None else ():
            if id(node) in given or isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
                continue
            if not isinstance(node, ast.Attribute | ast.Subscript | ast.Call) or (chain := _chain(node)) is None:
                continue
            if chain[-1] in names and (path, (node.lineno, node.col_offset)) not in places:
                others.add(chain[-1])
    return others


@lru_cache(maxsize=512)
def _of_file(data: bytes) -> tuple[tuple[OwnKey, ...], tuple[_Passed, ...]]:
    if not _ANY.search(data) or not _SPEAKS.search(data):
        return (), ()
    read = _parsed(data)
    found = [each for argument, value in _given(read.tree) for each in read.given(value, argument)] if read else []
    keys = tuple(dict.fromkeys(each for each in found if isinstance(each, OwnKey)))
    return keys, tuple(dict.fromkeys(each for each in found if isinstance(each, _Passed)))


@lru_cache(maxsize=512)
def _of_callers(data: bytes, passed: _Passed) -> tuple[OwnKey | _Passed, ...]:
    """What the source ``data`` gives to a parameter, wherever it calls the function."""
    read = _parsed(data)
    calls = [node for node in walk(read.tree) if isinstance(node, ast.Call)] if read else []
    values = [value for call in calls if (value := _argument(call, passed)) is not None]
    return tuple(dict.fromkeys(each for value in values for each in read.given(value, passed.argument))) if read else ()


def _argument(call: ast.Call, passed: _Passed) -> ast.expr | None:
    partial = last_name_of(call.func) == "partial" and bool(call.args) and last_name_of(call.args[0]) == passed.function
    if not partial and last_name_of(call.func) != passed.function:
        return None
    for keyword in call.keywords:
        if keyword.arg == passed.name:
            return keyword.value
    place = passed.position
    if partial or place is None or any(isinstance(one, ast.Starred) for one in call.args[: place + 1]):
        return None
    return call.args[place] if place < len(call.args) else None


@lru_cache(maxsize=64)
def _parsed(data: bytes) -> _Read | None:
    try:
        return _Read(ast.parse(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class _Read:
    """One file, and what its expressions read."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self._above = {id(child): node for node in walk(tree) for child in children(node)}
        self._assigned: dict[str, list[ast.expr]] = {}
        for node in walk(tree):
            for target in node.targets if isinstance(node, ast.Assign) else ():
                if isinstance(target, ast.Name):
                    self._assigned.setdefault(target.id, []).append(node.value)  # type: ignore[attr-defined]

    def given(self, value: ast.expr, argument: str, through: int = 2) -> Iterator[OwnKey | _Passed]:
        """The keys, and the parameters around it, that ``value`` is made of, ``through`` so many names."""
        chain = _chain(value)
        if chain is None:
            for child in children(value):
                yield from self.given(child, argument, through) if isinstance(child, ast.expr) else ()
        elif len(chain) == 1:
            yield from self._of_name(value, chain[0], argument, through)
        elif chain[0] == "self" and len(chain) == 2:
            yield from self._of_attribute(value, chain[1], argument, through)
        else:
            names = chain[1:] if chain[0] == "self" else chain
            if not names[-1].isupper():
                yield OwnKey(names[0], tuple(names[1:]), argument, (value.lineno, value.col_offset))

    def _of_name(self, node: ast.expr, name: str, argument: str, through: int) -> Iterator[OwnKey | _Passed]:
        for function in self._functions(node):
            taken = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
            if name in (*taken, *(one.arg for one in function.args.kwonlyargs)):
                owner = self._class(function)
                bound = int(owner is not None and taken[:1] in (["self"], ["cls"]))
                position = taken.index(name) - bound if name in taken else None
                called = owner.name if owner is not None and function.name == "__init__" else function.name
                yield _Passed(called, name, position, argument)
                return
        several = self._assigned.get(name, [])
        if len(several) == 1 and through:
            yield from self.given(several[0], argument, through - 1)

    def _of_attribute(self, node: ast.expr, name: str, argument: str, through: int) -> Iterator[OwnKey | _Passed]:
        owner = self._class(node)
        if owner is None:
            return
        if any(isinstance(n, ast.AnnAssign) and last_name_of(n.target) == name for n in owner.body):
            yield OwnKey(owner.name, (name,), argument, (node.lineno, node.col_offset))
            return
        made = [
            one.value for one in walk(owner) if isinstance(one, ast.Assign) and _chain(one.targets[0]) == ["self", name]
        ]
        if len(made) == 1 and through:
            yield from self.given(made[0], argument, through - 1)

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        above = self._above.get(id(node))
        while above is not None:
            yield above
            above = self._above.get(id(above))

    def _functions(self, node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (one for one in self._around(node) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef))

    def _class(self, node: ast.AST) -> ast.ClassDef | None:
        return next((one for one in self._around(node) if isinstance(one, ast.ClassDef)), None)


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
