"""What is said about a use of an FSDP1 name that no rule speaks about."""

from __future__ import annotations

from fsdp_rules.fsdp1.api import entries
from fsdp_rules.fsdp1.methods import METHODS
from fsdp_rules.fsdp1.names import FSDP


def message(known: str) -> str:
    """What to say about the canonical name ``known``."""
    if known.startswith("."):
        return f"torch.distributed.fsdp{known} is private to FSDP1 and has no FSDP2 equivalent"
    return f"this use of {known} has no FSDP2 equivalent known to this tool"


def advice(known: str) -> str:
    """What to do about it."""
    if known.startswith(f"{FSDP}.") and known.endswith("state_dict_type"):
        return (
            "remove this setting, and pass StateDictOptions to each call of get_model_state_dict and similar functions"
        )
    _, _, member = known.partition(".")
    if known.startswith(f"{FSDP}.") and member in METHODS:
        return f"call {member} on the model itself where this value is used, and run this tool again"
    if any(entry.kind == "method" and entry.name == member for entry in entries()):
        return f"call FSDP.{member}(...) itself where this value is used, and run this tool again"
    if known == FSDP:
        return "call fully_shard(module, ...) where this value is used, or keep the file on fsdp_compat (--to shim)"
    return "replace it with the public FSDP2 API (FSDPModule.unshard, reshard, DTensor parameters), or remove it"
