"""How long the native form of a call may be."""

from __future__ import annotations

from fsdp_rules.construction._plan.local_functions import lines_of
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Edit, InsertBefore, ReplaceStatement

#: What one call may become, in lines; more is the work of a helper.
MOST_LINES = 30
#: Those of the chain of prefetches, which say what one argument of FSDP1 says and are no reason for a helper.
CHAIN = 3


def too_long(plan: ShardPlan, native: list[Edit], file: File) -> bool:
    """Whether the native form takes more lines of its own than a maintainer would want to own."""
    written = [edit for edit in (*native, *plan.edits) if isinstance(edit, ReplaceStatement)]
    before = sum(file.code(edit.node).count("\n") + 1 for edit in written)
    after = sum(edit.build(file.code).count("\n") + 1 for edit in written)
    inserted = sum(edit.build(file.code).count("\n") + 1 for edit in native if isinstance(edit, InsertBefore))
    chain = CHAIN if plan.prefetches and plan.selector is not None else 0
    return lines_of(plan.edits) + inserted + max(0, after - before) > MOST_LINES + chain
