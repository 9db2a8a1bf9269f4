"""Rule for fairscale's FullyShardedDataParallel."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class Fairscale(Rule):
    """The class of the same name in fairscale.

    It is what FSDP1 grew out of, with other arguments (`reshard_after_forward`, `mixed_precision=True`) and other
    checkpoints. It does not go away with torch's FSDP1, so it is listed and left as it is.
    """

    id = "FSDP903"
    name = "fairscale"
    visits = (cst.ImportFrom,)
    shim = True
    before = """
from fairscale.nn import FullyShardedDataParallel
"""
    after = before

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """List the import."""
        if not isinstance(node, cst.ImportFrom) or node.module is None or isinstance(node.names, cst.ImportStar):
            return
        if (dotted(node.module) or "").partition(".")[0] != "fairscale":
            return
        if any(alias.evaluated_name == FSDP for alias in node.names):
            yield Diagnosis(
                node,
                Level.INFO,
                "this is fairscale's FullyShardedDataParallel, not torch's FSDP1: it is not migrated",
                "move to torch by hand: fully_shard on the same modules, MixedPrecisionPolicy for mixed_precision=True",
            )
