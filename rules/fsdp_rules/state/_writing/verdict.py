"""What is said about a call that takes or loads the state of an FSDP1 model."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.state._governing.blocks import block_problem
from fsdp_rules.state._governing.site import StateSite, state_site
from fsdp_rules.state._writing.base import refuse
from fsdp_rules.state._writing.get import Taking
from fsdp_rules.state._writing.set import Putting
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level


def verdicts(call: cst.Call, file: File) -> list[Diagnosis]:
    """The verdict about ``call``; none where it is no FSDP1 model's state, or its ``with`` block speaks for it."""
    site = state_site(call, file)
    found = _verdict(site) if site is not None else None
    return [found] if found is not None else []


def _verdict(site: StateSite) -> Diagnosis | None:
    around = site.enclosing
    if around is not None and (around.context is None or block_problem(around.block, site.file) is not None):
        is_reason = bool(site.governing.problem or site.state.problem)
        return None if site.is_method or is_reason else _with_its_block(site, around.block)
    if around is None and site.is_method and not site.receiver.is_model:
        return None
    if around is None and site.is_method and site.receiver.is_a_mere_name:
        return _only_named(site)
    problem = site.governing.problem or site.state.problem
    return refuse(site.state, problem) if problem else (Taking if site.takes else Putting)(site).diagnosis()


def _with_its_block(site: StateSite, block: cst.With) -> Diagnosis:
    line = site.file.span(block).line
    return Diagnosis(
        site.call,
        Level.INFO,
        f"unchanged: {site.state.name} belongs to the state_dict_type on line {line}, which is changed by hand",
        "run this tool again once that block is changed",
        claims=(site.call.func,),
    )


def _only_named(site: StateSite) -> Diagnosis:
    return Diagnosis(
        site.call,
        Level.REVIEW,
        f"assumes {site.file.code(site.model)} is not sharded: only another file has its sharded model under this name",
        f"if it is the sharded one, use {site.state.action.value} of torch.distributed.checkpoint.state_dict",
    )
