"""The edits that turn a dictionary of FSDP1's arguments into one of arguments of ``fully_shard``."""

from __future__ import annotations

import textwrap

import libcst as cst

from fsdp_rules.construction._plan.argument_dicts import DROPPED, ArgumentDict, Write
from fsdp_rules.construction._plan.policy_text import display
from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.project.configured import Contract
from fsdp_rules.verdict.diagnosis import Edit, Replace, ReplaceStatement

#: Under which keys a policy is kept: FSDP1's, or a test of a module.
POLICIES = ("auto_wrap_policy", "should_shard")


def argument_edits(found: ArgumentDict, contract: Contract, file: File) -> list[Edit]:
    """What each place that fills the dictionary becomes."""
    places = dict.fromkeys(write.where for write in found.writes)
    return [
        _place(where, [write for write in found.writes if write.where is where], contract, file) for where in places
    ]


def _place(where: cst.CSTNode, writes: list[Write], contract: Contract, file: File) -> Edit:
    if isinstance(where, cst.BaseExpression):
        return Replace(where, lambda code: display(_entries(writes, contract, code)))
    name = file.code(_target(where))

    def build(code: Code) -> str:
        entries = _entries(writes, contract, code)
        return f"{name}.update({display(entries)})" if entries else ""

    return ReplaceStatement(where, build)


def _target(statement: cst.CSTNode) -> cst.CSTNode:
    if isinstance(statement, cst.Assign):
        return cst.ensure_type(statement.targets[0].target, cst.Subscript).value
    call = cst.ensure_type(cst.ensure_type(statement, cst.Expr).value, cst.Call)
    return cst.ensure_type(call.func, cst.Attribute).value


def _entries(writes: list[Write], contract: Contract, code: Code) -> list[str]:
    found = [_entry(write, contract, code) for write in writes]
    return [text for text in found if text]


def is_dropped(write: Write, contract: Contract) -> bool:
    """Whether ``fully_shard`` has no use for what ``write`` puts in."""
    no_policy = write.key == "auto_wrap_policy" and contract.keys.isdisjoint(POLICIES)
    return write.key in DROPPED or write.key == "device_id" or no_policy or is_none(write.value)


def _entry(write: Write, contract: Contract, code: Code) -> str:
    if is_dropped(write, contract):
        return ""
    text = code(write.value)
    if write.key == "sharding_strategy":
        return textwrap.dedent(text[1:-1]).strip().rstrip(",") if text.startswith("{") else f"**{text}"
    if write.key == "auto_wrap_policy":
        policy = next(key for key in POLICIES if key in contract.keys)
        return f'"{policy}": {text}'
    names = {"mixed_precision": "mp_policy", "cpu_offload": "offload_policy"}
    return f'"{names.get(write.key, write.key)}": {text}'
