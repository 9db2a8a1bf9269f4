"""FSDP1 names that no other rule speaks about."""

from __future__ import annotations

from fsdp_rules.verdict.rule import Role, Rule
from fsdp_rules.verdict.what_to_test import UNCHECKED


class UnknownUse(Rule):
    """FSDP1 name used in an unknown way.

    Examples are the class passed as a value, a subclass of it, or a private function. The tool never guesses. It keeps
    the line and lists it, because one FSDP1 call left in a migrated project can crash it or silently do nothing. If the
    code passes the class on and only calls it, the class becomes `fsdp_compat.shard`, which accepts the same arguments.
    """

    id = "FSDP901"
    role = Role.UNKNOWN
    name = "unknown-fsdp1-use"
    what_to_test = UNCHECKED
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

WRAPPERS = {"fsdp": FSDP}
"""
    after = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

# TODO(fsdp-migrate FSDP901): this use of FullyShardedDataParallel has no FSDP2 equivalent known to this tool
WRAPPERS = {"fsdp": FSDP}
"""
