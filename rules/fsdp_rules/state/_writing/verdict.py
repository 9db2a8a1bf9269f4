"""What is said about a call that takes or loads the state of an FSDP1 model."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.state._governing.blocks import Problem, block_problem
from fsdp_rules.state._governing.nested import calls_of
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


@once
def problem_of(block: cst.With, file: File) -> Problem | None:
    """What keeps ``block`` from being rewritten, a call in it that has no FSDP2 form among that; else None."""
    return block_problem(block, file) or next(_refused(block, file), None)


def refused_under(setting: cst.Call, file: File) -> str:
    """Why a call that ``setting``, of ``set_state_dict_type``, governs has no FSDP2 form; "" where all have one."""
    for call in file.nodes(cst.Call):
        site = state_site(call, file)
        if site is None or site.enclosing is not None or site.governing.problem or site.state.problem:
            continue
        if site.governing.context.call is setting and site.receiver.is_model and _written(site).level is Level.MANUAL:
            return f"{site.state.name} on line {file.span(call).line} depends on it, and cannot be rewritten"
    return ""


def _refused(block: cst.With, file: File) -> Iterator[Problem]:
    for call in calls_of(block, file):
        site = state_site(call, file)
        if site is None or site.enclosing is None or site.enclosing.block is not block:
            continue
        if not site.governing.problem and not site.state.problem and (said := _written(site)).level is Level.MANUAL:
            yield Problem(said.message, said.advice)


def _written(site: StateSite) -> Diagnosis:
    return (Taking if site.takes else Putting)(site).diagnosis()


def _verdict(site: StateSite) -> Diagnosis | None:
    around = site.enclosing
    if around is not None and (around.context is None or problem_of(around.block, site.file) is not None):
        is_reason = bool(site.governing.problem or site.state.problem)
        return None if site.is_method or is_reason else _with_its_block(site, around.block)
    if around is None and site.is_method and not site.receiver.is_model:
        return None
    if around is None and site.is_method and site.receiver.is_a_mere_name:
        return _only_named(site)
    problem = site.governing.problem or site.state.problem
    return refuse(site.state, problem) if problem else _written(site)


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
        f"assumes {site.file.code(site.model)} is not sharded: only another file uses this name for its sharded model",
        f"if it is the sharded model, use {site.state.action.value} of torch.distributed.checkpoint.state_dict",
    )
