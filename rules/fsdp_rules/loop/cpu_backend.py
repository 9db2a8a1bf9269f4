"""Rule for ``init_process_group("nccl")`` where gradients on the CPU are clipped."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.loop._clipping import clipping_of, may_be_own_method, takes_a_norm
from fsdp_rules.loop.clip_grad_norm import ClipGradNorm
from fsdp_rules.model.backends import CPU_BACKEND_RULE, starts_of_nccl
from fsdp_rules.model.sharded import sharded
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import CLIPPING

BOTH = "cpu:gloo,cuda:nccl"


class CpuBackend(Rule):
    """init_process_group("nccl") and offloaded gradients.

    FSDP1 copied the norm of offloaded gradients to the GPU before it reduced it. FSDP2 reduces it where the gradients
    are, so the process group needs a backend for the CPU, and `"cpu:gloo,cuda:nccl"` is torch's way to have both. The
    call is changed where the same file clips a model that may be offloaded. GPU tensors are reduced by NCCL as before.
    Collectives of Python objects, and barriers, run on gloo then.

    The call is kept, and the clipping takes a helper, where the project asks for a backend's name, gives other groups
    a backend or the model a group, and where `device_id=` meets a 2-D mesh, whose groups torch splits off for the GPU.
    """

    id = CPU_BACKEND_RULE
    name = "cpu-backend"
    what_to_test = CLIPPING
    words = (r"\binit_process_group\b",)
    visits = (cst.Call,)
    before = """
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, loss):
    dist.init_process_group("nccl")
    model = FSDP(model, cpu_offload=CPUOffload(offload_params=True))
    loss(model).backward()
    model.clip_grad_norm_(1.0)
"""
    after = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

def train(model, loss):
    dist.init_process_group("cpu:gloo,cuda:nccl")
    fully_shard(model, offload_policy=CPUOffloadPolicy())
    loss(model).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """The texts of the call, where some clipping in the file needs gloo."""
        if not isinstance(node, cst.Call):
            return
        texts = [text for text in starts_of_nccl(file) if node in file.ancestors(text)]
        if texts and any(_needs_cpu_backend(call, file) for call in file.nodes(cst.Call)):
            edits = tuple(Replace(text, partial(_both, text)) for text in texts)
            yield Diagnosis(
                node,
                Level.REVIEW,
                "gloo reduces the norm of offloaded gradients, assumes nothing else starts this run's process group",
                "check that dist.get_backend_config() names gloo for the CPU in a run. Object collectives use it too.",
                edits=edits,
            )


def _needs_cpu_backend(call: cst.Call, file: File) -> bool:
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value != "clip_grad_norm_":
        return False
    if not file.settings.enabled(ClipGradNorm.id) or file.suppressions.ignored(ClipGradNorm.id, call):
        return False
    receiver = call.func.value
    found = sharded(receiver, file)
    if found.is_excluded or may_be_own_method(found, file) or not takes_a_norm(call, file):
        return False
    return clipping_of(call, receiver, file).adds_cpu_backend


def _both(text: cst.SimpleString, code: Code) -> str:
    return f"{text.prefix}{text.quote}{BOTH}{text.quote}"
