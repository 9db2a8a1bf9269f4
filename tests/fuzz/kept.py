"""What a rewrite keeps byte for byte: comments, strings, manual statements, and every line away from FSDP1."""

from __future__ import annotations

import ast
import collections
import io
import re
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fsdp_rules.engine.todos import TODO
from fsdp_rules.file.comments import PRAGMA
from fsdp_rules.fsdp1.api import parameters
from fsdp_rules.verdict.finding import Finding, Level

_REWRITTEN = (Level.SAFE, Level.REVIEW)
_STRINGS = {tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
#: A line of a call with nothing but arguments that have no successor.
_GONE = re.compile(r"((backward_prefetch|forward_prefetch|limit_all_gathers|use_orig_params)\s*=\s*[\w.]+\s*,?\s*)+")
#: An argument of FSDP1's that is no code any more.
_COMMENTED_OUT = re.compile(rf"#\s*({'|'.join(parameters('FullyShardedDataParallel'))})\s*=[^=].*,$")
_WORD = re.compile(r"[A-Za-z_]\w*")


def hold(before: str, after: str, findings: tuple[Finding, ...], neutral: Mapping[str, str]) -> None:
    """Compare two sources with line feeds that Python takes; ``neutral`` as in ``source_properties.hold``."""
    touched = _Touched.of(before, findings)
    comments = _lost(_tokens(before, {tokenize.COMMENT}), _tokens(after, {tokenize.COMMENT}))
    comments = _beyond_gone(before, comments)
    comments = [text for _, text in comments if not PRAGMA.match(text) and "fsdp-migrate" not in text]
    assert not comments, f"comments are lost: {comments}\n{after}"
    # One statement may take the place of another that says the same text twice.
    untouched = [(line, text) for line, text in _tokens(before, _STRINGS) if line not in touched.lines]
    strings = [text for _, text in _lost(untouched, _tokens(after, _STRINGS))]
    assert not strings, f"strings are lost: {strings}\n{after}"
    _manual_is_kept(before, after, findings)
    _rest_is_kept(before, after, touched)
    for name, text in neutral.items():
        _kept(name, text, before, after)


@dataclass
class _Touched:
    """The lines that a rewrite has business with, and those inside of compound statements that it has business with."""

    lines: set[int] = field(default_factory=set)
    inside: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, source: str, findings: Iterable[Finding]) -> _Touched:
        rewritten = [entry for entry in findings if entry.level in _REWRITTEN]
        found = {line for entry in rewritten for line in (entry.line, entry.statement)}
        # What reads parameters inside of such a block is another expression without it.
        gathering = {entry.statement for entry in rewritten if entry.rule == "FSDP203"}
        touched = cls()
        statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
        words: set[str] = set()
        contexts = _stored_contexts(statements, found)
        for node in statements:
            own = _own_lines(node)
            if not found.isdisjoint(own) or node in contexts:
                touched.lines.update(own)
                inner = touched.inside if gathering.isdisjoint(own) else touched.lines
                inner.update(range(own.stop, _last_line(node, source.split("\n")) + 1))
                text = "\n".join(source.split("\n")[own.start - 1 : own.stop - 1])
                words.update(_WORD.findall(text))
        # An import that nothing needs any more goes, and so does a value that only a wrap has read, through any names.
        pending = statements
        while pending:
            gone = [node for node in pending if _may_go(node, words)]
            for node in gone:
                touched.lines.update(_own_lines(node))
                words.update(_WORD.findall(ast.unparse(node)) if isinstance(node, ast.Assign | ast.AnnAssign) else ())
            pending = [node for node in pending if node not in gone] if gone else []
        return touched


def _last_line(node: ast.stmt, lines: list[str]) -> int:
    """The last line of a statement, with the comments behind it that are in its block, which the parser leaves out."""
    last = node.end_lineno or 0
    for number, line in enumerate(lines[last:], start=last + 1):
        text = line.lstrip()
        if text and not (text.startswith("#") and len(line) - len(text) > node.col_offset):
            break
        last = number if text else last
    return last


def _stored_contexts(statements: list[ast.stmt], found: set[int]) -> list[ast.With]:
    """The ``with`` blocks whose context a statement with a finding has given a name: what is said is said there."""
    stored = [node for node in statements if isinstance(node, ast.Assign) and not found.isdisjoint(_own_lines(node))]
    names = {target.id for node in stored for target in node.targets if isinstance(target, ast.Name)}
    blocks = [node for node in statements if isinstance(node, ast.With)]
    return [node for node in blocks if any(_name(item.context_expr) in names for item in node.items)]


def _name(node: ast.expr) -> str:
    """The plain name that is read, or called without arguments."""
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        node = node.func
    return node.id if isinstance(node, ast.Name) else ""


def _may_go(node: ast.stmt, words: set[str]) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    names = {target.id for target in targets if isinstance(target, ast.Name)}
    return isinstance(node, ast.Import | ast.ImportFrom) or not names.isdisjoint(words) or _loads(node)


def _loads(node: ast.stmt) -> bool:
    """Whether ``node`` loads a state into an optimizer, which one call does together with the line above."""
    func = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return isinstance(func, ast.Attribute) and func.attr == "load_state_dict"


def _own_lines(node: ast.stmt) -> range:
    """The lines of a simple statement, of a compound one those above its body."""
    body = getattr(node, "body", None)
    decorators = [entry.lineno for entry in getattr(node, "decorator_list", ())]
    start = min([node.lineno, *decorators])
    if isinstance(body, list) and body and isinstance(body[0], ast.stmt) and body[0].lineno > node.lineno:
        return range(start, body[0].lineno)
    return range(start, (node.end_lineno or node.lineno) + 1)


def _tokens(source: str, kinds: set[int]) -> list[tuple[int, str]]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [(token.start[0], token.string) for token in tokens if token.type in kinds]


def _lost(before: list[tuple[int, str]], after: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """The entries of ``before``, by line, whose text is less often among those of ``after``."""
    left = collections.Counter(text for _, text in after)
    lost = []
    for line, text in before:
        left[text] -= 1
        if left[text] < 0:
            lost.append((line, text))
    return lost


def _beyond_gone(before: str, lost: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """``lost`` without the comments behind arguments that FSDP2 has in no form, or above one: those say nothing now."""
    code = [line.partition("#")[0].strip() for line in before.split("\n")]
    gone = collections.Counter(
        text
        for line, text in _tokens(before, {tokenize.COMMENT})
        if _GONE.fullmatch(next((one for one in code[line - 1 : line + 1] if one), ""))
    )
    kept = []
    for line, text in lost:
        gone[text] -= 1
        if gone[text] < 0 and not _COMMENTED_OUT.match(text):
            kept.append((line, text))
    return kept


def _manual_is_kept(before: str, after: str, findings: Iterable[Finding]) -> None:
    # What is said of a statement inside of it is a comment of its own.
    lines = before.split("\n")
    rest = "\n".join(line for line in map(str.lstrip, after.split("\n")) if not TODO.match(line))
    # What is said of a class or a function is about its head: its body is rewritten.
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    heads = {
        (node.lineno, node.end_lineno): _own_lines(node)[-1]
        for node in ast.walk(ast.parse(before))
        if isinstance(node, definitions) and node.body[0].lineno > node.lineno
    }
    for found in findings:
        if found.level is not Level.MANUAL:
            continue
        last = heads.get((found.line, found.end_line), found.end_line)
        named = lines[found.line - 1 : last]
        named[-1] = named[-1][: found.end_column] if last == found.end_line else named[-1]
        named[0] = named[0][found.column :]
        text = "\n".join(line for line in map(str.lstrip, named) if not TODO.match(line))
        assert text in rest, f"{found.rule}: manual, but changed: {text}\n{after}"


def _rest_is_kept(before: str, after: str, touched: _Touched) -> None:
    lines = after.split("\n")
    exact, moved = collections.Counter(lines), collections.Counter(map(str.lstrip, lines))
    for number, line in enumerate(before.split("\n"), start=1):
        goes_on = line.endswith("\\") and number + 1 in touched.lines
        if number in touched.lines or goes_on or not line.strip() or "fsdp-migrate" in line:
            continue
        left, text = (moved, line.lstrip()) if number in touched.inside else (exact, line)
        left[text] -= 1
        assert left[text] >= 0, f"a line away from FSDP1 is changed, {number}: {line!r}\n{after}"


def _kept(name: str, text: str, before: str, after: str) -> None:
    def bound(source: str) -> list[str]:
        return [
            ast.dump(node)
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == name
        ]

    assert bound(before) == bound(after), f"{name} is not what it was:\n{after}"
    if f"\n{text}\n" in before:
        # What follows may go, and a file without a newline at its end has none then either.
        assert f"\n{text}\n" in f"{after}\n", f"the text of {name} is not what it was:\n{after}"
