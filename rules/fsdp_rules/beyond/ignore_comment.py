"""Rule for comments that are meant to silence a rule, and do not."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class IgnoreComment(Rule):
    """Malformed ignore comments (`# fsdp-migrate: ignore [FSDP203]`).

    They silence nothing. If a mistyped comment silenced every rule, it would hide findings by accident. `#
    fsdp-migrate: ignore` silences all rules on its line, `# fsdp-migrate: ignore[FSDP203, FSDP301]` those it names.
    """

    id = "FSDP905"
    name = "ignore-comment"
    visits = (cst.Module,)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    return FSDP(model)  # fsdp-migrate: ignore [FSDP101]
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(model):
    return fully_shard(model)  # fsdp-migrate: ignore [FSDP101]
"""

    def visit(self, node: cst.Module, file: File) -> Iterable[Diagnosis]:
        """Report each comment, at the statement of its line."""
        for line, text in file.suppressions.wrong.items():
            statements = (*file.nodes(cst.SimpleStatementLine), *file.nodes(cst.FunctionDef), *file.nodes(cst.ClassDef))
            place = min(statements, key=lambda entry: abs(file.span(entry).line - line), default=node)
            yield Diagnosis(
                place,
                Level.INFO,
                f"line {line}: {text!r} silences nothing, because it is not a valid ignore comment",
                "Write # fsdp-migrate: ignore[FSDP203].",
            )
