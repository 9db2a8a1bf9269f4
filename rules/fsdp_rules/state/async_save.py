"""Rule for asynchronous saves without a process group for the CPU."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.backends import reduces_no_cpu_tensors
from fsdp_rules.state._writing.dcp_imports import DCP
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

SAVES = (f"{DCP}.async_save", f"{DCP}.state_dict_saver.async_save")


class AsyncSave(Rule):
    """torch.distributed.checkpoint.async_save without a CPU backend.

    `async_save` coordinates ranks on the CPU, and raises if its process group has no backend for it. A project that
    starts NCCL alone has none: `init_process_group("cpu:gloo,cuda:nccl")` starts both.
    """

    id = "FSDP318"
    name = "async-save"
    what_to_test = RESUME
    visits = (cst.Call,)
    markers = ("async_save",)
    open_world = True
    shim = True
    before = """
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, path):
    dist.init_process_group("nccl")
    model = FSDP(net)
    return dcp.async_save(get_model_state_dict(model), checkpoint_id=path)
"""
    after = """
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

def train(net, path):
    dist.init_process_group("nccl")
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP318): async_save raises without a CPU backend, and this project starts NCCL alone
    return dcp.async_save(get_model_state_dict(model), checkpoint_id=path)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """A save in the group of the whole program."""
        if not file.project.may_trap(file.settings.traps) or file.resolved(node.func) not in SAVES:
            return
        has_group = any(one.keyword and one.keyword.value == "process_group" for one in node.args)
        if not has_group and reduces_no_cpu_tensors(file):
            may_have = any(one.star for one in node.args)
            yield Diagnosis(
                node,
                Level.REVIEW if may_have else Level.MANUAL,
                f"{'without a process_group, ' if may_have else ''}async_save raises without a CPU backend, and this "
                "project starts NCCL alone",
                'pass process_group=dist.new_group(backend="gloo"), or start with backend="cpu:gloo,cuda:nccl"',
            )
