"""Words by which a framework is asked for FSDP1 (``STRATEGY = "fsdp"``), where a file keeps them for another."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from fsdp_rules.project.exports import Exports
from fsdp_rules.project.programs import Programs
from fsdp_rules.project.walking import children, walk

LIGHTNING = ("fsdp", "fsdp_cpu_offload", "fsdp_native", "fsdp_native_full_shard_offload")
WORD = re.compile(rf"(?:{'|'.join(LIGHTNING)}|(?:full_shard|shard_grad_op|hybrid_shard\w*|no_shard)\b.*)")
#: accelerate's settings as an object, which stands among the words by this name.
PLUGIN = "FullyShardedDataParallelPlugin"
#: A cheap test of a file's bytes.
MAY_GIVE = re.compile(
    rb"[\"'](?:fsdp|full_shard|shard_grad_op|hybrid_shard|no_shard)|\bFullyShardedDataParallelPlugin\("
)
#: A name with its word and line, and the words of a file's own names.
Found = tuple[str, str, int]
Known = Mapping[str, str]
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
#: Calls that take such a word, and keep it for nobody.
_TAKERS = ("Trainer", "Fabric")


class Word(NamedTuple):
    """The word ``text`` that ``line`` of the file at ``path`` gives to ``name``.

    ``name`` is dotted in its module, ends with ``()`` where a call gives the word, and is ``f(0)`` for what is given to
    the first parameter of ``f``. It starts with a dot for an attribute, a key or an option, of whatever it is.
    """

    name: str
    text: str
    path: str
    line: int

    @property
    def root(self) -> str:
        """What its module calls it, empty where that is not said."""
        return "" if self.is_loose else self.name.partition(".")[0].removesuffix("()")

    @property
    def is_loose(self) -> bool:
        """Whether it is found by its last name alone."""
        return self.name.startswith(".") or (self.name.endswith(")") and not self.name.endswith("()"))


@dataclass(frozen=True)
class Words:
    """All words of a tree, by their whole dotted names, or those that start with a dot."""

    known: Mapping[str, tuple[Word, ...]] = field(default_factory=dict)
    programs: Programs = field(default_factory=Programs)

    def __bool__(self) -> bool:
        return bool(self.known)

    @classmethod
    def build(cls, files: Iterable[tuple[str, tuple[Word, ...]]], programs: Programs | None) -> Words:
        """Those of ``files``, each with its module."""
        found: dict[str, list[Word]] = defaultdict(list)
        for module, words in files:
            for word in words:
                is_loose = word.name.startswith(".") or (word.name.endswith(")") and not word.name.endswith("()"))
                found[word.name if is_loose else f"{module}.{word.name}"].append(word)
        return cls({name: tuple(words) for name, words in found.items()}, programs or Programs())

    def of(self, dotted: str, exports: Exports) -> tuple[Word, ...]:
        """What the imported name ``dotted`` may be."""
        full = exports.resolve(dotted.removesuffix("()"))
        end = "()" if dotted.endswith("()") else ""
        head, _, name = full.rpartition(".")
        while head:
            for module in exports.modules.get(head, ()):
                for one in (module, *exports.starred(module)):
                    if words := self.known.get(f"{one}.{name}{end}"):
                        return words
            head, _, last = head.rpartition(".")
            name = f"{last}.{name}"
        return ()

    def called(self, name: str, path: str) -> tuple[Word, ...]:
        """What an attribute (``.name``) or a parameter (``f(0)``) may be for the file at ``path``."""
        return tuple(word for word in self.known.get(name, ()) if self.programs.may_share(word.path, path))


def words_in(tree: ast.Module, path: str) -> tuple[Word, ...]:
    """The words of one file."""
    known = {name: text for name, text, _ in _inside(tree, "", {}) if name.isidentifier()}
    return tuple(Word(name, text, path, line) for name, text, line in _inside(tree, "", known))


def _inside(node: ast.AST, scope: str | None, known: Known) -> Iterator[Found]:
    """What is given inside ``node``; ``scope`` is the class around it, None in a function."""
    for one in children(node):
        inner = scope
        if isinstance(one, ast.ClassDef) and scope is not None:
            inner = f"{scope}.{one.name}".strip(".")
        elif isinstance(one, _FUNCTIONS):
            inner = None
            for returned in (entry for entry in walk(one) if isinstance(entry, ast.Return)):
                for text, line in texts(returned.value, known):
                    yield f".{one.name}()", text, line
                    if scope is not None:
                        yield f"{scope}.{one.name}()".strip("."), text, line
        elif isinstance(one, ast.Assign | ast.AnnAssign) and one.value is not None:
            for target in one.targets if isinstance(one, ast.Assign) else [one.target]:
                yield from _assigned(target, one.value, scope, known)
        elif isinstance(one, ast.Dict):
            yield from _keys(one, "", known)
        elif isinstance(one, ast.Call):
            yield from _given(one, known)
        yield from _inside(one, inner, known)


def _assigned(target: ast.expr, value: ast.expr, scope: str | None, known: Known) -> Iterator[Found]:
    found = [*texts(value, known)]
    key = ""
    if isinstance(target, ast.Attribute):
        key = target.attr
    elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        key = str(target.slice.value)
    elif isinstance(target, ast.Name) and scope is not None:
        name = f"{scope}.{target.id}".strip(".")
        # What a class gives its attribute, an object may be asked for.
        key = target.id if scope else ""
        yield from ((name, text, line) for text, line in found)
        if isinstance(value, ast.Dict | ast.Call):
            yield from _keys(value, name, known)
    if key:
        yield from ((f".{key}", text, line) for text, line in found)


def _keys(value: ast.Dict | ast.Call, name: str, known: Known) -> Iterator[Found]:
    """The entries of a dictionary called ``name``, also of ``dict(...)``."""
    if isinstance(value, ast.Dict):
        pairs = [(_text(key), one) for key, one in zip(value.keys, value.values, strict=True)]
    else:
        pairs = [(one.arg or "", one.value) for one in value.keywords]
    for key, one in pairs:
        for text, line in texts(one, known) if key else ():
            yield f"{name}.{key}", text, line


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _given(call: ast.Call, known: Known) -> Iterator[Found]:
    """What a call gives to parameters and options of that name, and to parameters by their places."""
    name = _callee(call)
    if name.endswith(_TAKERS):
        return
    option = _text(call.args[0]) if call.args else ""
    if option.startswith("--"):
        for text, line in (found for one in call.keywords for found in texts(one.value, known)):
            yield f".{option[2:].replace('-', '_')}", text, line
        return
    yield from _keys(call, "", known)
    for place, one in enumerate(call.args):
        for text, line in texts(one, known) if _text(one) else ():
            yield f"{name}({place})", text, line
            if name == "setattr" and place == 2 and (key := _text(call.args[1])):
                yield f".{key}", text, line


def _callee(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def texts(value: ast.expr | None, known: Known) -> Iterator[tuple[str, int]]:
    """The words that ``value`` may be, with their lines: what it is compared with is none of them."""
    pending: list[ast.AST] = [value] if value is not None else []
    while pending:
        one = pending.pop()
        if isinstance(one, ast.Constant) and isinstance(one.value, str) and WORD.fullmatch(one.value):
            yield one.value, one.lineno
        elif isinstance(one, ast.Name) and one.id in known:
            yield known[one.id], one.lineno
        elif isinstance(one, ast.IfExp):
            pending += [one.body, one.orelse]
        elif isinstance(one, ast.BoolOp):
            pending += one.values
        elif isinstance(one, ast.List | ast.Tuple | ast.Set):
            pending += one.elts
        elif isinstance(one, ast.Subscript) and isinstance(one.value, ast.Dict):
            pending += one.value.values
        elif isinstance(one, ast.NamedExpr):
            pending.append(one.value)
        elif isinstance(one, ast.Call):
            if _callee(one) == PLUGIN:
                yield PLUGIN, one.lineno
            pending += [*one.args[1 if isinstance(one.func, ast.Attribute) else 0 :]]
            pending += [entry.value for entry in one.keywords if entry.arg in ("default", "default_factory")]
            if isinstance(one.func, ast.Attribute) and isinstance(one.func.value, ast.Dict):
                pending += one.func.value.values
        elif isinstance(one, ast.Lambda):
            pending.append(one.body)
