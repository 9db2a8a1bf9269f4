"""FSDP1 names that no other rule speaks about."""

from __future__ import annotations

from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.rule import Rule


class UnknownUse(Rule):
    """An FSDP1 name in a place, or of a kind, that no rule knows.

    The class passed as a value, a subclass of it, a private function: nothing is guessed. The line stays as it is and
    is listed, since one FSDP1 call left in a migrated project can crash it, or silently do nothing.
    """

    id = "FSDP901"
    name = "unknown-fsdp1-use"
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

WRAPPERS = {"fsdp": FSDP}
"""
    after = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

# TODO(fsdp-migrate FSDP901): FullyShardedDataParallel is used here in a way that has no known FSDP2 form
WRAPPERS = {"fsdp": FSDP}
"""

    def message(self, known: str) -> str:
        """What to say about the canonical name ``known``."""
        if known.startswith("."):
            return f"torch.distributed.fsdp{known} is FSDP1's own machinery and has no FSDP2 form"
        return f"{known} is used here in a way that has no known FSDP2 form"

    def advice(self, known: str) -> str:
        """What to do about it."""
        if known.startswith(FSDP):
            return "call fully_shard(module, ...) where this value is used, or keep the file on fsdp_compat (--to shim)"
        return "replace it by the public FSDP2 API (FSDPModule.unshard, reshard, DTensor parameters) or remove it"
