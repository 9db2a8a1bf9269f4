"""The words by which a framework is asked for FSDP1, found where they are written: here, or in another file."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import literal_text, only_key
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.project.given_words import WORD, Word
from fsdp_rules.project.places import module_name

#: Calls that read an entry or an attribute by its name.
_READS = ("get", "getattr", "pop", "getenv")


def words_of(node: cst.BaseExpression, file: File, depth: int = 8) -> Iterator[Word]:
    """What ``node`` may be, as far as the tree says it."""
    if depth == 0:
        return
    if isinstance(node, cst.SimpleString | cst.ConcatenatedString):
        text = node.evaluated_value
        if isinstance(text, str) and WORD.fullmatch(text):
            yield Word("", text, file.path, file.span(node).line)
        return
    if isinstance(node, cst.IfExp):
        inner = [node.body, node.orelse]
    elif isinstance(node, cst.BooleanOperation):
        inner = [node.left, node.right]
    elif isinstance(node, cst.NamedExpr):
        inner = [node.value]
    elif isinstance(node, cst.Name) and not _is_parameter(node, file):
        inner = [one for one in file.objects.origins(node) if one is not node]
    elif isinstance(node, cst.Call):
        inner = [one.value for one in node.args]
    else:
        inner = []
    for one in inner:
        yield from words_of(one, file, depth - 1)
    yield from _kept(node, file)


def unpacked_words(node: cst.BaseExpression, key: str, file: File) -> Iterator[Word]:
    """What ``**node`` may give to ``key``."""
    value = file.objects.origin(node)
    items = value.elements if isinstance(value, cst.Dict) else value.args if isinstance(value, cst.Call) else ()
    given = [item.value for item in items if key_of(item) == key]
    for one in given:
        yield from words_of(one, file)
    full = file.resolved(node)
    if not given and full:
        yield from _named(f"{full}.{key}", file) or file.project.words.called(f".{key}", file.path)
    elif not given:
        yield from file.project.words.called(f".{key}", file.path)


def _kept(node: cst.BaseExpression, file: File) -> Iterator[Word]:
    """What is kept for ``node`` under a name."""
    words = file.project.words
    if isinstance(node, cst.Name):
        if (place := _parameter(node, file)) is not None:
            function, number, default = place
            if default is not None:
                yield from words_of(default, file, 2)
            yield from words.called(f"{function}({number})", file.path)
            yield from words.called(f".{node.value}", file.path)
        else:
            yield from _named(file.resolved(node) or node.value, file)
    elif isinstance(node, cst.Attribute):
        yield from _named(file.resolved(node) or "", file) or words.called(f".{node.attr.value}", file.path)
    elif isinstance(node, cst.Subscript):
        key = literal_text(only_key(node))
        full = file.resolved(node.value) or ""
        if key:
            yield from _named(f"{full}.{key}", file) or words.called(f".{key}", file.path)
    elif isinstance(node, cst.Call):
        name = node.func.attr.value if isinstance(node.func, cst.Attribute) else file.code(node.func)
        full = file.resolved(node.func) or file.code(node.func)
        yield from _named(f"{full}()", file) or words.called(f".{name}()", file.path)
        if name in _READS:
            for key in filter(None, ((literal_text(one.value) or "") for one in node.args[:2])):
                yield from words.called(f".{key}", file.path)


def _named(full: str, file: File) -> tuple[Word, ...]:
    """What the dotted name ``full``, as the file's imports expand it, may be; a name of the file itself too."""
    exports = file.project.names
    return file.project.words.of(full, exports) or file.project.words.of(f"{module_name(file.path)}.{full}", exports)


def _is_parameter(node: cst.Name, file: File) -> bool:
    return _parameter(node, file) is not None


def _parameter(node: cst.Name, file: File) -> tuple[str, int, cst.BaseExpression | None] | None:
    """The function whose parameter ``node`` is, the place of it there, and its default."""
    for one in file.ancestors(node):
        if not isinstance(one, cst.FunctionDef):
            continue
        params = [*one.params.posonly_params, *one.params.params, *one.params.kwonly_params]
        for number, param in enumerate(params):
            if param.name.value == node.value:
                is_method = bool(params) and params[0].name.value in ("self", "cls")
                name = one.name.value
                if name == "__init__":
                    name = file.scope(one).rpartition(".")[2]
                return name, number - is_method, param.default
    return None
