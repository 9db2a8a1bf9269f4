"""What is said about a use of an FSDP1 name that no rule speaks about."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.api import entries
from fsdp_rules.fsdp1.methods import METHODS
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level


def message(known: str) -> str:
    """What to say about the canonical name ``known``."""
    if known.startswith("."):
        return f"torch.distributed.fsdp{known} is private to FSDP1 and has no FSDP2 equivalent"
    return f"this use of {known} has no FSDP2 equivalent known to this tool"


def handed_on(node: cst.BaseExpression, file: File) -> Diagnosis:
    """The verdict about FSDP1's class as a value, of which the tree does nothing but call it in the end."""
    if not file.settings.may_help:
        message = "needs fsdp_compat.shard instead of the class, but '--helpers never' forbids it"
        return Diagnosis(node, Level.MANUAL, message, advice(FSDP))
    helper = file.ref("fsdp_compat.shard")
    return Diagnosis(
        node,
        Level.REVIEW,
        "fsdp_compat.shard takes FSDP1's arguments wherever this is called, assuming no other code gets the value",
        "call fully_shard(module, ...) there to do without the helper",
        edits=(Replace(node, lambda code: helper),),
    )


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
