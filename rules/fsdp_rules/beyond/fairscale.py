"""Rule for fairscale's FullyShardedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import UNCHECKED


class Fairscale(Rule):
    """fairscale's FullyShardedDataParallel.

    FSDP1 was derived from fairscale's FSDP, which has other arguments (`reshard_after_forward`, `mixed_precision=True`)
    and other checkpoints. It is not part of torch's FSDP1, so it is listed and not rewritten.
    """

    id = "FSDP903"
    name = "fairscale"
    spelled = ("fairscale",)
    what_to_test = UNCHECKED
    visits = (cst.ImportFrom,)
    shim = True
    before = """
from fairscale.nn import FullyShardedDataParallel
"""
    after = before

    def visit(self, node: cst.ImportFrom, file: File) -> Iterable[Diagnosis]:
        """List the import."""
        if node.module is None or isinstance(node.names, cst.ImportStar):
            return
        if (dotted(node.module) or "").partition(".")[0] != "fairscale":
            return
        if any(alias.evaluated_name == FSDP for alias in node.names):
            yield Diagnosis(
                node,
                Level.INFO,
                "this is fairscale's FullyShardedDataParallel, not torch's FSDP1, and is not migrated",
                "migrate to torch by hand: call fully_shard on the same modules, with MixedPrecisionPolicy "
                "for mixed_precision=True",
            )
