"""Rule for the first names of torch.distributed.checkpoint's save and load."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import bind
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.state._writing.dcp_imports import DCP, spell
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

PACKAGES = (DCP, "torch.distributed._shard.checkpoint")
FUNCTIONS = {
    "save_state_dict": ("save", "state_dict_saver", "storage_writer"),
    "load_state_dict": ("load", "state_dict_loader", "storage_reader"),
}


class CheckpointFunctions(Rule):
    """save_state_dict() and load_state_dict() of torch.distributed.checkpoint.

    These are deprecated names of `save` and `load`, whose arguments are keyword-only except for the state. They are
    rewritten only in a project that uses FSDP1.
    """

    id = "FSDP307"
    name = "checkpoint-functions"
    what_to_test = RESUME
    visits = (cst.Call,)
    before = """
import torch.distributed.checkpoint as dist_cp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

def save(model, writer):
    model = FSDP(model)
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        dist_cp.save_state_dict(model.state_dict(), writer)
"""
    after = """
import torch.distributed.checkpoint as dist_cp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

def save(model, writer):
    fully_shard(model)
    dist_cp.save(get_model_state_dict(model), storage_writer=writer)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """One verdict for each call."""
        if not _in_fsdp1_code(file):
            return
        name = _function(node, file)
        if name is None:
            return
        new, _, storage = FUNCTIONS[name]
        names = ("state_dict", storage, "process_group", "coordinator_rank", "no_dist", "planner")
        arguments = bind(node, names)
        if arguments is None or file.code(arguments.get("coordinator_rank", cst.Integer("0"))) != "0":
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{name} is deprecated, and its arguments do not fit its replacement {new}",
                f"call torch.distributed.checkpoint.{new}(state_dict, {storage}=...)",
            )
            return
        spelled = spell(new, node, file)
        positional = [argument for argument in node.args if argument.keyword is None]
        edit = (
            Replace(node.func, lambda code: spelled)
            if len(positional) <= 1 and "coordinator_rank" not in arguments
            else Replace(node, _call(spelled, node, names, file))
        )
        if "no_dist" in arguments:
            yield Diagnosis(
                node,
                Level.REVIEW,
                f"{name} is now called {new}, assuming torch 2.7 or newer (before, {new} had no argument no_dist)",
                f"for older versions, remove no_dist: without a process group, {new} works on one rank anyway",
                edits=(edit,),
            )
            return
        yield Diagnosis(node, Level.SAFE, f"{name} is now called {new}", edits=(edit,))


def _in_fsdp1_code(file: File) -> bool:
    return "fsdp1" in file.project.tree_flags or any(canonical(target) is not None for target in file.aliases.values())


def _function(node: cst.Call, file: File) -> str | None:
    full = file.resolved(node.func)
    for name, (_, module, _) in FUNCTIONS.items():
        for package in PACKAGES:
            if full in (f"{package}.{name}", f"{package}.{module}.{name}"):
                return name
    return None


def _call(function: str, call: cst.Call, names: tuple[str, ...], file: File) -> Build:
    """``call`` of another function, all but its first argument by keyword, on the lines that it had."""

    def build(code: Code) -> str:
        parts = [f"{function}({file.module.code_for_node(call.whitespace_before_args)}"]
        behind = ""
        for position, argument in enumerate(call.args):
            name = argument.keyword.value if argument.keyword is not None else names[position]
            if name != "coordinator_rank":
                by_keyword = argument.keyword is not None or position > 0
                parts += [behind, f"{name}=" if by_keyword else "", code(argument.value)]
            marks = (argument.whitespace_after_arg, argument.comma)
            behind = "".join(file.module.code_for_node(mark) for mark in marks if isinstance(mark, cst.CSTNode))
        return "".join([*parts, behind, ")"])

    return build
