"""Rule for classes derived from ``FullyShardedDataParallel``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule


class Subclass(Rule):
    """Subclass of FullyShardedDataParallel.

    FSDP2 has no wrapper class to derive from: `fully_shard` changes the class of the model itself. The methods that
    such a class overrides must move, and only its author knows where, so the class is listed and not rewritten.
    """

    id = "FSDP119"
    is_wrap = True
    name = "subclass"
    moves_together = True
    visits = (cst.ClassDef,)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class MyFSDP(FSDP):
    def forward(self, batch):
        return super().forward(**batch)
"""
    after = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

# TODO(fsdp-migrate FSDP119): MyFSDP derives from FSDP1's wrapper, which FSDP2 does not have
class MyFSDP(FSDP):
    def forward(self, batch):
        return super().forward(**batch)
"""

    def visit(self, node: cst.ClassDef, file: File) -> Iterable[Diagnosis]:
        """List the class."""
        bases = tuple(base.value for base in node.bases if file.fsdp1(base.value) == FSDP)
        if bases:
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{node.name.value} derives from FSDP1's wrapper, which FSDP2 does not have",
                "move its methods (forward, state_dict, ...) to the model's own class or to functions, and "
                "call fully_shard where the class is constructed",
                claims=bases,
            )
