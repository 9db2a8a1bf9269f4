"""Methods that are called on FSDP1's class, read as calls on the model, so that all rules know them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import accumulate

from fsdp_rules.engine.source_text import decode
from fsdp_rules.fsdp1.methods import METHODS
from fsdp_rules.fsdp1.names import FSDP, canonical, expand
from fsdp_rules.loop.class_calls import ClassCalls
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.facts import aliases_in
from fsdp_rules.project.walking import walk
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding, Level

#: What the shim's own class has for such a call, too.
ON_THE_SHIM = frozenset({"clip_grad_norm_", "no_sync", "register_comm_hook"})
#: The property of FSDP1's class, read through the class.
GETTERS = ("module.fget", "module.__get__")
CALLED = re.compile(rb"\.(?:%s|fget|__get__)\b|getattr" % "|".join(sorted(METHODS)).encode())
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|$)")
OPENS = re.compile(r"\s*\(\s*")
CLOSES = re.compile(r"\s*,?\s*")


def on_models(data: bytes, path: str, settings: Settings) -> tuple[bytes, tuple[Finding, ...]]:
    """``data``, the bytes of a Python file, with each ``FSDP.method(model, ...)`` as ``model.method(...)``.

    The findings have the lines of ``data``. Calls of a subclass on itself, and what cannot be read, are kept.
    """
    rule = ClassCalls()
    if b"FullyShardedDataParallel" not in data or not CALLED.search(data) or not settings.enabled(rule.id):
        return data, ()
    try:
        source = decode(data)
        tree = ast.parse(source.text)
    except (SyntaxError, UnicodeDecodeError, LookupError, ValueError, RecursionError):
        return data, ()
    text, lines = source.text, LINE.findall(source.text)
    starts = [0, *accumulate(map(len, lines))]

    def offset(line: int | None, column: int | None) -> int:
        # Columns of ast count bytes.
        row = (line or 1) - 1
        return starts[row] + len(lines[row].encode()[: column or 0].decode())

    findings = []
    edits: list[tuple[int, int, str]] = []
    for call, method in _calls(tree, aliases_in(path, text), settings):
        first = call.args[0]
        start, named = offset(call.lineno, call.col_offset), offset(call.func.end_lineno, call.func.end_col_offset)
        given, after = offset(first.lineno, first.col_offset), offset(first.end_lineno, first.end_col_offset)
        end = offset(call.end_lineno, call.end_col_offset)
        # Parentheses and comments of its own around the model are not taken apart.
        if OPENS.fullmatch(text, named, given) is None or any(a < end and start < b for a, b, _ in edits):
            continue
        if any("fsdp-migrate: ignore" in line for line in lines[call.lineno - 1 : call.end_lineno]):
            continue
        has_more = len(call.args) + len(call.keywords) > 1
        opening = text[named:given] if has_more else "("
        rest = "" if method in GETTERS else opening + text[CLOSES.match(text, after).end() : end]  # type: ignore[union-attr]
        name = {"__call__": "", **dict.fromkeys(GETTERS, ".module")}.get(method, f".{method}")
        edits.append((start, end, f"{text[given:after]}{name}{rest}"))
        findings.append(_finding(rule, call, path))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return (source.encode(text), tuple(findings)) if edits else (data, ())


def _calls(tree: ast.Module, names: dict[str, str], settings: Settings) -> Iterator[tuple[ast.Call, str]]:
    """The calls on FSDP1's class that are given a model, each with its method."""
    bound = {node.arg for node in walk(tree) if isinstance(node, ast.arg)}
    own = {id(entry) for node in walk(tree) if isinstance(node, ast.ClassDef) and node.bases for entry in walk(node)}
    for node in walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        text = text_of(node.func) or ""
        known = canonical(expand(text, names)) or ""
        method = known.removeprefix(f"{FSDP}.")
        if method == known or text.partition(".")[0] in bound or (method not in METHODS and method not in GETTERS):
            continue
        if (settings.to == "shim" and method in ON_THE_SHIM) or (method in GETTERS and len(node.args) > 1):
            continue
        if isinstance(node.args[0], ast.Name | ast.Attribute | ast.Subscript | ast.Call) and not (
            id(node) in own and _is_itself(node.args[0])
        ):
            yield node, method


def _is_itself(model: ast.expr) -> bool:
    """Whether ``model`` is the object whose method this is: a subclass calls its base's method so."""
    return isinstance(model, ast.Name) and model.id in ("self", "cls")


def _finding(rule: ClassCalls, call: ast.Call, path: str) -> Finding:
    end = call.end_lineno or call.lineno, call.end_col_offset or call.col_offset
    at = call.lineno, call.col_offset
    return Finding(rule.id, rule.name, path, *at, *end, Level.SAFE, rule.message, statement=call.lineno)
