"""Rule for the ``fully_shard`` of Megatron-FSDP."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.project.gates import MEGATRON
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import UNCHECKED


class Megatron(Rule):
    """megatron_fsdp.fully_shard, which is not torch's.

    Megatron-FSDP's `fully_shard` has torch's name, other arguments and other checkpoints. Its models are not
    FSDPModules. A branch that calls it is not an FSDP2 branch, so the FSDP1 branch next to it is rewritten.
    """

    id = "FSDP907"
    name = "megatron-fsdp"
    spelled = (MEGATRON,)
    what_to_test = UNCHECKED
    visits = (cst.ImportFrom, cst.Import)
    shim = True
    before = """
from megatron_fsdp import fully_shard
"""
    after = before

    def visit(self, node: cst.ImportFrom | cst.Import, file: File) -> Iterable[Diagnosis]:
        """List the import."""
        if isinstance(node, cst.Import):
            modules = [alias.evaluated_name for alias in node.names]
        else:
            modules = [] if node.module is None else [dotted(node.module) or ""]
        if any(module.partition(".")[0] == MEGATRON for module in modules):
            yield Diagnosis(
                node,
                Level.INFO,
                "this is Megatron-FSDP, whose fully_shard is not torch's, and is not migrated",
                "do not load its checkpoints into models of torch.distributed.fsdp.fully_shard, or theirs into it",
            )
