"""Code that runs on ``fsdp_compat``, read as the FSDP1 code that it stands for, so that the same rules move it on."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import cast

from fsdp_rules.engine.registry import in_charge
from fsdp_rules.engine.rewrite import rewrite_source
from fsdp_rules.engine.source_text import decode
from fsdp_rules.fsdp1.names import FSDP, FSDP1_NAMES, FSDP_PACKAGE, POLICY_NAMES
from fsdp_rules.project.project import Project, index_source
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from fsdp_rules.verdict.rule import Role

SHIM = "fsdp_compat"
#: Functions of the shim that are methods of a model under FSDP1.
METHODS = frozenset({"clip_grad_norm_", "no_sync"})
#: Functions of the shim that are static methods of FSDP1's class.
STATICS = frozenset(
    {
        "fsdp_modules",
        "get_state_dict_type",
        "optim_state_dict",
        "optim_state_dict_to_load",
        "set_state_dict_type",
        "state_dict_type",
        "summon_full_params",
    }
)
#: What FSDP1 and the shim each have their own of; configurations and policies are the same objects in both.
OWN = re.compile(rb"\b(FullyShardedDataParallel|ShardedGradScaler|enable_wrap)\b")


def as_fsdp1(data: bytes) -> bytes:
    """``data``, the bytes of a Python file, with FSDP1's names in place of those of the shim.

    What does not parse, or has no name of the shim, comes back as it is. Comments inside an import of several modules
    stand above it afterwards.
    """
    if SHIM.encode() not in data:
        return data
    try:
        source = decode(data)
        tree = ast.parse(source.text)
    except (SyntaxError, UnicodeDecodeError, LookupError, ValueError, RecursionError):
        return data
    return source.encode(_Reader(source.text, tree).text())


def back_on_shim(data: bytes, path: str) -> bytes:
    """``data`` with the FSDP1 names that a rewrite has left imported from the shim, where they came from."""
    facts = index_source(path, data) if OWN.search(data) else None
    if facts is None:
        return data
    settings = Settings(to="shim", select=(in_charge(Role.IMPORTS).id,))
    result = rewrite_source(data, path, Project.build([facts]), settings)
    return result.source if isinstance(result, Changed) else data


@dataclass
class _Reader:
    source: str
    tree: ast.Module
    edits: list[tuple[int, int, str]] = field(default_factory=list)
    imports: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    dotted: set[str] = field(default_factory=set)
    kept: bool = False

    def text(self) -> str:
        lines = self.source.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._lines = lines
        self._names = _bound(self.tree)
        names = {
            alias.asname or alias.name
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == SHIM
        }
        functions: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and node.module == SHIM and not node.level:
                self._imported(node, functions)
        called: set[ast.expr] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call):
                self._called(node, names, functions, called)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Attribute) and node not in called and _of(node, names):
                self.kept = not self._attribute(node) or self.kept
        self._add_imports(names)
        text = self.source
        for start, end, new in sorted(self.edits, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def _imported(self, node: ast.ImportFrom, functions: dict[str, str]) -> None:
        parts: dict[str, list[str]] = defaultdict(list)
        for alias in node.names:
            name = FSDP if alias.name == "FSDP" else alias.name
            local = alias.asname or alias.name
            if name in FSDP1_NAMES:
                parts[_module(name)].append(name if name == local else f"{name} as {local}")
                continue
            parts[SHIM].append(name if name == local else f"{name} as {local}")
            functions[local] = name
        renamed = "FSDP" in (alias.name for alias in node.names)
        start, end = self._span(node)
        if set(parts) == {SHIM}:
            return
        if len(parts) == 1 and not renamed:
            found = re.compile(rf"from\s+{SHIM}\b").match(self.source, start)
            if found is not None:
                self.edits.append((found.end() - len(SHIM), found.end(), next(iter(parts))))
            return
        indent = " " * node.col_offset
        comments = [f"{text}\n{indent}" for text in _comments(self.source[start:end])]
        lines = [f"from {module} import {', '.join(names)}" for module, names in sorted(parts.items())]
        self.edits.append((start, end, "".join(comments) + f"\n{indent}".join(lines)))

    def _called(self, call: ast.Call, names: set[str], functions: dict[str, str], called: set[ast.expr]) -> None:
        """A call of one of the shim's functions: FSDP1's method, static method or constructor."""
        if isinstance(call.func, ast.Attribute) and _of(call.func, names):
            name = call.func.attr
        elif isinstance(call.func, ast.Name) and call.func.id in functions:
            name = functions[call.func.id]
        else:
            return
        if name in METHODS and call.args and not isinstance(call.args[0], ast.Starred):
            called.add(call.func)
            model = call.args[0]
            owner = ast.get_source_segment(self.source, model) or ""
            if not isinstance(model, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
                owner = f"({owner})"
            rest = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
            start, end = self._span(call.func)[0], self._span(model)[1]
            if rest:
                end = self.source.index(",", end) + 1
                end += len(self.source[end:]) - len(self.source[end:].lstrip(" "))
            self.edits.append((start, end, f"{owner}.{name}("))
        elif name in STATICS or name == "shard":
            called.add(call.func)
            self.edits.append((*self._span(call.func), self._spelled(FSDP, "" if name == "shard" else name)))

    def _attribute(self, node: ast.Attribute) -> bool:
        """Whether this attribute of the shim is a name of FSDP1's, which then takes its place."""
        name = FSDP if node.attr == "FSDP" else node.attr
        if name in STATICS:
            self.edits.append((*self._span(node), self._spelled(FSDP, name)))
        elif name in FSDP1_NAMES:
            self.edits.append((*self._span(node), self._spelled(name)))
        else:
            return False
        return True

    def _spelled(self, name: str, member: str = "") -> str:
        """How the file is to spell FSDP1's ``name``, which gets an import where the shim is imported."""
        taken = name in self._names
        if taken:
            self.dotted.add(_module(name))
        else:
            self.imports[_module(name)].add(name)
        return (f"{_module(name)}.{name}" if taken else name) + (f".{member}" if member else "")

    def _add_imports(self, names: set[str]) -> None:
        """Import FSDP1's names where the shim is imported; that import goes with the last use of the shim."""
        lines = [f"import {module}" for module in sorted(self.dotted)]
        lines += [f"from {module} import {', '.join(sorted(found))}" for module, found in sorted(self.imports.items())]
        used = any(isinstance(node, ast.Name) and node.id in names for node in ast.walk(self.tree))
        for node in ast.walk(self.tree):
            shim = isinstance(node, ast.Import) and [alias.name for alias in node.names] == [SHIM]
            if not shim and not (lines and isinstance(node, ast.ImportFrom) and node.module == SHIM):
                continue
            start, end = self._span(cast("ast.stmt", node))
            separator = "\n" + " " * getattr(node, "col_offset", 0)
            if shim and not self.kept and used:
                self.edits.append((start, end, separator.join(lines)))
            elif lines:
                self.edits.append((start, start, "".join(f"{line}{separator}" for line in lines)))
            return

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return (
            self._offset(node.lineno, node.col_offset),
            self._offset(node.end_lineno or node.lineno, node.end_col_offset or node.col_offset),
        )

    def _offset(self, line: int, column: int) -> int:
        """The place in the text; columns of ``ast`` count bytes."""
        text = self._lines[line - 1]
        return self._starts[line - 1] + len(text.encode()[:column].decode())

    _names: frozenset[str] = frozenset()
    _starts: list[int] = field(default_factory=list)
    _lines: list[str] = field(default_factory=list)


def _bound(tree: ast.Module) -> frozenset[str]:
    """Every plain name of a file."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
    return frozenset(found)


def _of(node: ast.Attribute, names: Iterable[str]) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in names


def _module(name: str) -> str:
    if name == "ShardedGradScaler":
        return f"{FSDP_PACKAGE}.sharded_grad_scaler"
    return f"{FSDP_PACKAGE}.wrap" if name in POLICY_NAMES else FSDP_PACKAGE


def _comments(text: str) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(text, newline=None).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
