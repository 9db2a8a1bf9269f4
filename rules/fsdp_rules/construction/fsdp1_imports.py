"""Rule for the imports of FSDP1 names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.comments import comments
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.printing import alias_text, import_text
from fsdp_rules.fsdp1.names import FSDP1_NAMES, PUBLIC_MODULES, canonical
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace, ReplaceStatement
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Role, Rule

SHIM = "fsdp_compat"


class Imports(Rule):
    """Imports of FSDP1 names.

    After a native rewrite an import keeps exactly the names that are still used, and the names that FSDP2 needs are
    added next to them. Configuration values that remaining FSDP1 code needs are listed once per file. With `--to shim`
    only the imports change: every public FSDP1 name comes from `fsdp_compat`. A star import hides the names that are
    used, so it is reported. Imports under `try` or a version test are not rewritten to FSDP2, because they belong to
    code for another version of torch.
    """

    id = "FSDP100"
    role = Role.IMPORTS
    name = "import"
    visits = (cst.ImportFrom, cst.Attribute)
    shim = True
    before = """
from torch.distributed.fsdp import *

def build(model):
    return FullyShardedDataParallel(model)
"""
    after = """
# TODO(fsdp-migrate FSDP100): a star import hides which FSDP1 names this file uses
from torch.distributed.fsdp import *

def build(model):
    return FullyShardedDataParallel(model)
"""

    def visit(self, node: cst.ImportFrom | cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """Star imports always; everything else with ``--to shim`` alone."""
        if isinstance(node, cst.ImportFrom):
            module = dotted(node.module) if node.module is not None and not node.relative else None
            if module not in PUBLIC_MODULES:
                return
            if isinstance(node.names, cst.ImportStar):
                yield Diagnosis(
                    node,
                    Level.MANUAL,
                    "a star import hides which FSDP1 names this file uses",
                    "import the names that are used one by one, then run this tool again",
                )
            elif file.settings.to == "shim":
                yield from self._move(node, list(node.names), file)
        elif file.settings.to == "shim" and isinstance(node, cst.Attribute):
            yield from self._dotted(node, file)

    def _move(self, node: cst.ImportFrom, names: list[cst.ImportAlias], file: File) -> Iterator[Diagnosis]:
        module = dotted(node.module) if node.module is not None else ""
        moved = [alias for alias in names if canonical(f"{module}.{alias.evaluated_name}") in FSDP1_NAMES]
        if not moved:
            return
        kept = [alias for alias in names if alias not in moved]
        yield Diagnosis(
            node,
            Level.SAFE,
            "FSDP1 names are imported from fsdp_compat, which runs them on fully_shard",
            edits=(_split(node, moved, kept, file) if kept or node.module is None else _renamed(node.module),),
        )

    def _dotted(self, node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
        known = file.fsdp1(node)
        if known not in FSDP1_NAMES:
            return
        spelled = file.ref(f"fsdp_compat.{known}")
        yield Diagnosis(
            node,
            Level.SAFE,
            "FSDP1 names are imported from fsdp_compat, which runs them on fully_shard",
            edits=(Replace(node, lambda code: spelled),),
        )


def _renamed(module: cst.BaseExpression) -> Replace:
    return Replace(module, lambda code: SHIM)


def _split(
    node: cst.ImportFrom, moved: list[cst.ImportAlias], kept: list[cst.ImportAlias], file: File
) -> ReplaceStatement:
    """One statement for each of the two modules, comments beside the names above it."""
    long = "\n" in file.code(node)
    lines: list[str] = []
    for module, names in ((SHIM, moved), (file.code(node.module or node), kept)):
        lines += [text for alias in names for text in comments(alias)]
        lines.append(import_text(module, list(map(alias_text, names)), long))
    return ReplaceStatement(node, lambda code: "\n".join(lines))
