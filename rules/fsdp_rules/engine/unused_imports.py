"""The imports of which a rewrite leaves names unused: what nothing reads any more goes."""

from __future__ import annotations

from typing import cast

import libcst as cst

from fsdp_rules.engine.import_statements import (
    FSDP1_IMPORT,
    StatementTransformer,
    bound_names,
    from_import,
    regenerated,
)
from fsdp_rules.engine.registry import in_charge
from fsdp_rules.engine.released import released_by
from fsdp_rules.file.comments import lines_of_comments, removed_line
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import alias_text
from fsdp_rules.file.tree import dotted
from fsdp_rules.fsdp1.names import CHECKPOINT_WRAPPER, CONFIG_NAMES, FSDP, FSDP_PACKAGE, POLICY_NAMES, canonical
from fsdp_rules.project.gates import VERSION_TEST
from fsdp_rules.verdict.rule import Role

#: Modules whose names a rewrite may leave unused besides FSDP1's own.
CLEANED = (
    *("functools", "contextlib", "enum", "torch.distributed.checkpoint", "torch.distributed._shard.checkpoint"),
    *(FSDP_PACKAGE, CHECKPOINT_WRAPPER),
)


MOVED = CONFIG_NAMES | POLICY_NAMES


class Cleaner(StatementTransformer):
    """Takes unused names out of import statements; an emptied statement stays as a marker for :class:`_Adder`."""

    def __init__(self, before: File, used: set[str], used_before: set[str]) -> None:
        super().__init__()
        self.before = before
        self.used = used
        self.used_before = used_before
        self.moved: list[str] = []
        self.names: list[str] = []
        self.gone = False
        self.emptied = False
        self.guards = 0
        self.depth = 0
        stays = any(
            canonical(before.project.resolve(before.aliases[name])) == FSDP
            for name in used & set(before.aliases) & bound_names(before, before.module)
        )
        # Where no helper is called, configurations and policies stay torch's own: that needs no new dependency.
        self.moves = before.settings.may_help and not stays and "fsdp_compat" in used

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self.depth += 1

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        self.depth -= 1
        return updated_node

    def visit_Try(self, node: cst.Try) -> None:
        self.guards += 1

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> cst.Try:
        self.guards -= 1
        return updated_node

    def visit_If(self, node: cst.If) -> None:
        self.guards += self._guards(node)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If:
        self.guards -= self._guards(original_node)
        return updated_node

    def _guards(self, node: cst.If) -> bool:
        """Whether the imports in an ``if`` are a choice: at the top of a file, or between versions."""
        return not self.depth or bool(VERSION_TEST.search(cst.Module([]).code_for_node(node.test)))

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        if self.guards or len(updated_node.body) != 1:
            return updated_node
        small = updated_node.body[0]
        if isinstance(small, cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
            if small.module is not None and not small.relative:
                return self._from(updated_node, small)
            return self._reexported(updated_node, small)
        if isinstance(small, cst.Import):
            return self._plain(updated_node, small)
        return updated_node

    def _from(
        self, line: cst.SimpleStatementLine, node: cst.ImportFrom
    ) -> cst.SimpleStatementLine | cst.FlattenSentinel[cst.SimpleStatementLine]:
        module = dotted(cast("cst.CSTNode", node.module)) or ""
        if isinstance(node.names, cst.ImportStar):
            return line
        if not module.startswith(CLEANED):
            return self._reexported(line, node)
        kept: list[cst.ImportAlias] = []
        moved: list[str] = []
        for alias in node.names:
            full = f"{module}.{alias.evaluated_name}"
            local = alias.evaluated_alias or alias.evaluated_name
            known = canonical(full)
            if self._drop(local, known is not None):
                self.gone |= known is not None
                continue
            if known in MOVED and self.moves:
                moved.append(alias_text(alias))
                self.names.append(alias.evaluated_name)
                continue
            kept.append(alias)
        if len(kept) == len(node.names):
            return line
        if moved and self.depth:
            shim = line.with_changes(body=[from_import("fsdp_compat", moved)])
            if not kept:
                return shim
            rest = regenerated(line, node, module, kept).with_changes(leading_lines=())
            return cst.FlattenSentinel([shim, rest])
        self.moved += [f"from fsdp_compat import {name}" for name in moved]
        if not kept:
            self.emptied = True
            return _removed(line, FSDP1_IMPORT if module.startswith(FSDP_PACKAGE) else "")
        return regenerated(line, node, module, kept)

    def _reexported(self, line: cst.SimpleStatementLine, node: cst.ImportFrom) -> cst.SimpleStatementLine:
        """``line`` without names from another module of the project, where the edits used them up."""
        if isinstance(node.names, cst.ImportStar):
            return line
        kept: list[cst.ImportAlias] = []
        own: list[cst.ImportAlias] = []
        for alias in node.names:
            local = alias.evaluated_alias or alias.evaluated_name
            full = self.before.project.resolve(self.before.aliases.get(local, ""))
            was_for_others = local in released_by(self.before.path, self.before.project)
            used = local in self.used_before or was_for_others
            if canonical(full) is not None and used and self._drop(local, was_for_others):
                continue
            # A removed argument was all that read it; what its module does when it is imported, it does for the others.
            if self._is_of_project(local) and self._drop(local, False):
                own.append(alias)
            kept.append(alias)
        kept = [alias for alias in kept if alias not in own] or own
        if len(kept) == len(node.names):
            return line
        if not kept:
            self.emptied = True
            return _removed(line)
        module = "." * len(node.relative) + (dotted(node.module) or "" if node.module is not None else "")
        return regenerated(line, node, module, kept)

    def _is_of_project(self, local: str) -> bool:
        """Whether ``local`` is imported from a module of the project, and is no module itself."""
        full = self.before.aliases.get(local, "")
        modules = self.before.project.names.modules
        return full.rpartition(".")[0] in modules and full not in modules

    def _plain(self, line: cst.SimpleStatementLine, node: cst.Import) -> cst.SimpleStatementLine:
        kept = []
        for alias in node.names:
            name = alias.evaluated_name
            local = alias.evaluated_alias or name.partition(".")[0]
            shared = alias.evaluated_alias is None and name.startswith("torch.")
            if name.startswith(CLEANED) and not shared and self._drop(local, False):
                continue
            kept.append(alias)
        if len(kept) == len(node.names):
            return line
        if not kept:
            self.emptied = True
            return _removed(line)
        kept[-1] = kept[-1].with_changes(comma=cst.MaybeSentinel.DEFAULT)
        return line.with_changes(body=[node.with_changes(names=kept)])

    def said(self) -> str:
        """What became of the imports of FSDP1 names."""
        if self.names:
            return f"{', '.join(sorted(set(self.names)))}: imported from fsdp_compat, whose helpers take them"
        return "imports of FSDP1 names that are no longer used are removed" if self.gone else ""

    def _drop(self, local: str, fsdp1: bool) -> bool:
        if local in self.used:
            return False
        if local not in self.used_before and not (fsdp1 and self.before.settings.enabled(in_charge(Role.IMPORTS).id)):
            return False
        return bool(self.depth) or not self._exported(local)

    def _exported(self, local: str) -> bool:
        return self.before.project.imports_from(self.before.path, local) or (
            self.before.path.endswith("__init__.py") and local not in self.used_before
        )


def _removed(line: cst.SimpleStatementLine, what: str = "") -> cst.SimpleStatementLine:
    return removed_line([*line.leading_lines, *lines_of_comments(*line.body, line.trailing_whitespace)], what)
