"""What CPUOffload becomes."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import bind, is_none, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Build


def offload_policy(wanted: bool | cst.BaseExpression | None, file: File) -> Build:
    """FSDP2's policy where parameters are offloaded if ``wanted``."""
    on = file.ref("torch.distributed.fsdp.CPUOffloadPolicy") + "()"
    off = file.ref("torch.distributed.fsdp.OffloadPolicy") + "()"
    if isinstance(wanted, cst.BaseExpression):
        return lambda code: f"{on} if {code(wanted)} else {off}"
    return lambda code: on if wanted else off


def offloads(value: cst.BaseExpression, file: File) -> bool | cst.BaseExpression | None:
    """Whether ``value`` offloads, or the expression that decides it; None where that is not known."""
    if is_none(value):
        return False
    if not isinstance(value, cst.Call) or file.fsdp1(value.func) != "CPUOffload":
        return None
    arguments = bind(value, ("offload_params",))
    if arguments is None:
        return None
    flag = arguments.get("offload_params")
    if flag is None:
        return False
    known = literal_bool(file.value(flag))
    return known if known is not None else flag
