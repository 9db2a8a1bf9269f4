"""Rule for ``init_process_group("nccl")`` where gradients on the CPU are clipped."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.reads import is_read_whole
from fsdp_rules.file.tree import Code
from fsdp_rules.loop._clipping import clip_of, clipping_of, may_be_own_method, takes_a_norm
from fsdp_rules.loop.clip_grad_norm import ClipGradNorm
from fsdp_rules.loop.grad_scaler import GradScaler
from fsdp_rules.model.backends import CPU_BACKEND_RULE, starts_of_nccl
from fsdp_rules.model.sharded import sharded
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import CLIPPING

BOTH = "cpu:gloo,cuda:nccl"
SCALER = "ShardedGradScaler"


class CpuBackend(Rule):
    """init_process_group("nccl") and offloaded gradients.

    FSDP1 copied the norm of offloaded gradients to the GPU before it reduced it. FSDP2 reduces it on the CPU, so the
    process group needs a CPU backend: `"cpu:gloo,cuda:nccl"` gives it both. The call is changed if the same file clips
    a model that may be offloaded, or scales gradients (`ShardedGradScaler`). NCCL still reduces GPU tensors.
    Collectives of Python objects and barriers then run on gloo.

    The call is kept, and clipping uses a helper, if the project reads the name of a backend, gives a backend to other
    groups or a group to the model, or combines `device_id=` with a 2-D mesh, whose groups torch splits off for the GPU.
    """

    id = CPU_BACKEND_RULE
    name = "cpu-backend"
    what_to_test = CLIPPING
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

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """The texts of the call, where some clipping in the file needs gloo."""
        texts = [text for text in starts_of_nccl(file) if node in file.ancestors(text)]
        if texts and (_scales_offloaded(file) or any(_clips_offloaded(call, file) for call in file.nodes(cst.Call))):
            edits = tuple(Replace(text, partial(_both, text)) for text in texts)
            yield Diagnosis(
                node,
                Level.REVIEW,
                "gloo reduces values of offloaded gradients, assuming nothing else starts this run's process group",
                "check in a run that dist.get_backend_config() lists gloo for the CPU. Object collectives use it too.",
                edits=edits,
            )


def _clips_offloaded(call: cst.Call, file: File) -> bool:
    clip = clip_of(call, file)
    if clip is None or not file.settings.enabled(ClipGradNorm.id):
        return False
    found = sharded(clip.model, file)
    if file.suppressions.ignored(ClipGradNorm.id, call) or not takes_a_norm(clip.call, file):
        return False
    if not clip.by_class and (found.is_excluded or may_be_own_method(found, file)):
        return False
    return clipping_of(clip.call, clip.model, file).adds_cpu_backend


def _scales_offloaded(file: File) -> bool:
    """Whether the file has FSDP1's scaler, whose successor reduces what it finds in offloaded gradients."""
    if "offload" not in file.project.flags or SCALER not in file.text or not file.settings.enabled(GradScaler.id):
        return False
    names = (name for kind in (cst.Name, cst.Attribute) for name in file.nodes(kind))
    return any(
        file.fsdp1(name) == SCALER
        and is_read_whole(name, file.layout)
        and not file.suppressions.ignored(GradScaler.id, name)
        for name in names
    )


def _both(text: cst.SimpleString, code: Code) -> str:
    return f"{text.prefix}{text.quote}{BOTH}{text.quote}"
