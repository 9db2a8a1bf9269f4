"""The imports that the output of a rewrite needs: where they go, and into which import that is there already."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from itertools import dropwhile
from typing import cast

import libcst as cst

from fsdp_rules.engine.guarded_imports import into_guard
from fsdp_rules.engine.import_statements import (
    FSDP1_IMPORT,
    StatementTransformer,
    bound_name,
    from_import,
    module_of,
    plain_import,
    plain_name,
    regenerated,
    small,
    visited,
)
from fsdp_rules.engine.settled import settle
from fsdp_rules.engine.used_names import names_used
from fsdp_rules.file.comments import REMOVED, is_removed
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import alias_text
from fsdp_rules.file.searching import find
from fsdp_rules.file.tree import dotted


class Adder:
    """Puts new imports where the emptied ones stood, into an existing import of the same module where there is one."""

    def __init__(self, before: File, needed: list[str], emptied: bool) -> None:
        self.before = before
        self.needed = needed
        self.emptied = emptied

    def run(self, module: cst.Module) -> cst.Module:
        body, self.needed = into_guard(list(module.body), self.needed)
        module = module.with_changes(body=body)
        above = self.before.references.wanted_above
        lazy = _LazyFiller([statement for statement in self.needed if bound_name(statement) not in above])
        if not _has_top_level_torch(module):
            module = visited(self.before, module, lazy, REMOVED)
            self.needed = [statement for statement in self.needed if statement not in lazy.placed]
        body = self._merge(list(module.body))
        body = self._insert(body)
        module = module.with_changes(body=body)
        module = cst.ensure_type(settle(visited(self.before, module, _Settle(), REMOVED)), cst.Module)
        return module if module.header or not self.emptied else _from_its_first_line(module)

    def _merge(self, body: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        for position, line in enumerate(body):
            if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
                continue
            node = line.body[0]
            if not isinstance(node, cst.ImportFrom) or node.module is None or isinstance(node.names, cst.ImportStar):
                continue
            if node.relative or position < self._floor(body):
                continue
            name = dotted(node.module)
            mine = [entry for entry in self.needed if entry.startswith(f"from {name} import ")]
            if not mine:
                continue
            names = [alias_text(alias) for alias in node.names]
            was_sorted = names == sorted(names, key=_import_key)
            names += [entry.split(" import ")[1] for entry in mine]
            names = sorted(dict.fromkeys(names), key=_import_key) if was_sorted else list(dict.fromkeys(names))
            body[position] = regenerated(line, node, name or "", node.names, names)
            self.needed = [entry for entry in self.needed if entry not in mine]
        return body

    def _insert(self, body: list[cst.BaseStatement]) -> list[cst.BaseStatement]:
        if not self.needed:
            return body
        grouped: dict[str, list[str]] = {}
        plain: list[str] = []
        for statement in self.needed:
            if statement.startswith("from "):
                module, _, name = statement.removeprefix("from ").partition(" import ")
                grouped.setdefault(module, []).append(name)
            else:
                plain.append(statement)
        froms = [from_import(module, sorted(names, key=_import_key)) for module, names in sorted(grouped.items())]
        body = self._place_plain(body, plain)
        for node in froms:
            at = max(self._position(body, node), self._floor(body))
            line = cst.SimpleStatementLine([node])
            if at < len(body) and is_removed(body[at], FSDP1_IMPORT):
                body[at] = line.with_changes(leading_lines=getattr(body[at], "leading_lines", ()))
            else:
                body.insert(at, line)
        return body

    def _place_plain(self, body: list[cst.BaseStatement], plain: list[str]) -> list[cst.BaseStatement]:
        for statement in sorted(plain):
            target = statement.split()[1]
            line: cst.BaseStatement = cst.SimpleStatementLine([plain_import(statement)])
            standard = target.partition(".")[0] in _STANDARD
            floor = self._floor(body)
            candidates = [
                (position, plain_name(entry))
                for position, entry in enumerate(body)
                if position >= floor and plain_name(entry) and (_root(plain_name(entry)) in _STANDARD) == standard
            ]
            later = [position for position, name in candidates if name > target]
            if candidates and later:
                at = later[0]
                first = cst.ensure_type(body[at], cst.SimpleStatementLine)
                line = cst.ensure_type(line, cst.SimpleStatementLine).with_changes(leading_lines=first.leading_lines)
                body[at] = first.with_changes(leading_lines=())
            elif candidates:
                at = candidates[-1][0] + 1
            elif floor:
                at = floor
            else:
                at = _first_import(body)
                while not standard and at < len(body) and _is_standard(small(body[at])):
                    at += 1
                if at < len(body) and isinstance(body[at], cst.SimpleStatementLine):
                    first = cst.ensure_type(body[at], cst.SimpleStatementLine)
                    line = cst.ensure_type(line, cst.SimpleStatementLine).with_changes(
                        leading_lines=first.leading_lines
                    )
                    gap = [cst.EmptyLine(indent=False)] if standard else []
                    body[at] = first.with_changes(leading_lines=gap)
            body.insert(at, line)
        return body

    def _floor(self, body: list[cst.BaseStatement]) -> int:
        """Where the first import is that no star import of an unknown module gives another meaning."""
        if not self.before.references.has_unseen_star:
            return 0
        return max((at for at, entry in enumerate(body, start=1) if _has_star(entry)), default=0)

    def _position(self, body: list[cst.BaseStatement], new: cst.ImportFrom) -> int:
        """Where a sorted import block has ``new``; in place of a removed import where there is one."""
        mine = module_of(new)
        known = [(position, module_of(small(entry))) for position, entry in enumerate(body)]
        similar = [(position, name) for position, name in known if name and _root(name) == _root(mine)]
        later = [position for position, name in similar if name > mine]
        markers = [position for position, entry in enumerate(body) if is_removed(entry, FSDP1_IMPORT)]
        if similar and not later:
            return similar[-1][0] + 1
        if later and not any(marker < later[0] for marker in markers):
            return later[0] if not getattr(body[later[0]], "leading_lines", ()) else later[0] + 1
        if markers:
            return markers[0]
        if later:
            return later[0]
        imports = [
            position for position, entry in enumerate(body) if isinstance(small(entry), cst.Import | cst.ImportFrom)
        ]
        torch = [position for position in imports if "torch" in cst.Module([]).code_for_node(body[position])]
        return (torch or imports or [_first_import(body) - 1])[-1] + 1


def _has_star(statement: cst.BaseStatement) -> bool:
    """Whether ``statement`` is a star import or has one in a block of its own."""
    node = small(statement)
    if isinstance(node, cst.ImportFrom):
        return isinstance(node.names, cst.ImportStar)
    return not isinstance(statement, cst.SimpleStatementLine) and bool(find(statement, cst.ImportStar))


def _text(statements: Sequence[cst.BaseStatement]) -> str:
    return cst.Module(cast("Sequence[cst.SimpleStatementLine]", statements)).code


def _is_standard(node: cst.CSTNode | None) -> bool:
    name = node.names[0].evaluated_name if isinstance(node, cst.Import) else module_of(node)
    return _root(name) in _STANDARD


_STANDARD = sys.stdlib_module_names


def _root(name: str) -> str:
    return name.partition(".")[0]


def _first_import(body: list[cst.BaseStatement]) -> int:
    """Where the first import may stand: behind the docstring and ``__future__`` imports."""
    at = 0
    for position, entry in enumerate(body):
        small = entry.body[0] if isinstance(entry, cst.SimpleStatementLine) and entry.body else None
        if position == 0 and isinstance(small, cst.Expr) and isinstance(small.value, cst.SimpleString):
            at = 1
        elif isinstance(small, cst.ImportFrom) and small.module is not None and dotted(small.module) == "__future__":
            at = position + 1
    return at


def _import_key(name: str) -> tuple[int, str]:
    plain = name.partition(" as ")[0]
    return (0 if plain.isupper() else 1 if plain[:1].isupper() else 2, plain)


def _has_top_level_torch(module: cst.Module) -> bool:
    return any(
        isinstance(entry, cst.SimpleStatementLine)
        and (
            is_removed(entry)
            or (isinstance(entry.body[0], cst.Import | cst.ImportFrom) and "torch" in module.code_for_node(entry))
        )
        for entry in module.body
    )


def _from_its_first_line(module: cst.Module) -> cst.Module:
    """``module`` without the empty lines that were below imports which it began with."""
    if not module.body:
        return module
    first = module.body[0]
    leading: Sequence[cst.EmptyLine] = getattr(first, "leading_lines", ())
    kept = [*dropwhile(lambda line: line.comment is None, leading)]
    return module.with_changes(body=[first.with_changes(leading_lines=kept), *module.body[1:]])


class _LazyFiller(StatementTransformer):
    """Gives each function whose own FSDP1 import went the new imports that this function uses."""

    def __init__(self, needed: list[str]) -> None:
        super().__init__()
        self.needed = needed
        self.placed: set[str] = set()

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        markers = [position for position, entry in enumerate(updated_node.body) if is_removed(entry)]
        if not markers:
            return updated_node
        without = [entry for entry in updated_node.body if not is_removed(entry)]
        names = names_used(ast.parse(_text(without))) if without else set()
        mine = [statement for statement in self.needed if bound_name(statement) in names]
        self.placed.update(mine)
        grouped: dict[str, list[str]] = {}
        new: list[cst.BaseStatement] = []
        for statement in mine:
            if statement.startswith("from "):
                module, _, name = statement.removeprefix("from ").partition(" import ")
                grouped.setdefault(module, []).append(name)
            else:
                new.append(cst.SimpleStatementLine([plain_import(statement)]))
        new += [
            cst.SimpleStatementLine([from_import(module, sorted(names, key=_import_key))])
            for module, names in sorted(grouped.items())
        ]
        if not new:
            return updated_node
        at = markers[0]
        new[0] = new[0].with_changes(leading_lines=getattr(updated_node.body[at], "leading_lines", ()))
        return updated_node.with_changes(body=[*updated_node.body[:at], *new, *updated_node.body[at + 1 :]])


class _Settle(StatementTransformer):
    """Drops the markers that are left, comments kept."""

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        return cst.ensure_type(settle(updated_node), cst.IndentedBlock)
