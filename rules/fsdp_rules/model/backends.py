"""What the process groups of a project can reduce."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import bind
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once

STARTS = (
    "torch.distributed.init_process_group",
    "torch.distributed.distributed_c10d.init_process_group",
)
PARAMETERS = (
    "backend",
    "init_method",
    "timeout",
    "world_size",
    "rank",
    "store",
    "group_name",
    "pg_options",
    "device_id",
)
#: The rule that gives a process group its CPU backend.
CPU_BACKEND_RULE = "FSDP232"


def reduces_no_cpu_tensors(file: File) -> bool:
    """Whether the project starts its process group for NCCL alone, as far as its text says."""
    return "nccl_alone" in file.project.flags and "cpu_backend" not in file.project.flags


def lacks_cpu_backend(file: File) -> bool:
    """Whether nothing reduces tensors on the CPU here: NCCL alone is started, and not in this file.

    Where this file starts it, and clips or scales gradients that may be offloaded, the start gets gloo for the CPU.
    """
    return reduces_no_cpu_tensors(file) and not starts_of_nccl(file)


def gets_cpu_backend(file: File) -> bool:
    """Whether the project's process group is started where gradients are clipped or scaled, and so gets gloo."""
    if "chosen_backend" in file.project.flags or "own_group" in file.project.flags:
        return False
    return "nccl_beside_norms" in file.project.flags


def starts_of_nccl(file: File) -> list[cst.SimpleString]:
    """The texts "nccl" in this file's calls of ``init_process_group``, which can name gloo for the CPU too.

    Empty where a backend is not written in the call, where the project asks for a backend's name or chooses one for
    other groups, and where ``device_id=`` makes torch split the groups of a 2-D mesh off for one device.
    """
    return _starts(file.module, file)


@once
def _starts(module: cst.Module, file: File) -> list[cst.SimpleString]:
    if "chosen_backend" in file.project.flags or "own_group" in file.project.flags:
        return []
    found: list[cst.SimpleString] = []
    for call in file.inside(module, cst.Call):
        if file.resolved(call.func) not in STARTS:
            continue
        if file.suppressions.ignored(CPU_BACKEND_RULE, call) or file.suppressions.gated(call) is not None:
            return []
        given = bind(call, PARAMETERS) or {}
        texts = _texts(given.get("backend"))
        if not texts or "pg_options" in given or ("device_id" in given and "two_meshes" in file.project.flags):
            return []
        found += [text for text in texts if text.raw_value == "nccl"]
    return found if file.settings.enabled(CPU_BACKEND_RULE) else []


def _texts(backend: cst.BaseExpression | None) -> list[cst.SimpleString]:
    """The texts that a call may be given, none where it may be given something else."""
    if isinstance(backend, cst.IfExp):
        arms = [_texts(backend.body), _texts(backend.orelse)]
        return [text for arm in arms for text in arm] if all(arms) else []
    return [backend] if isinstance(backend, cst.SimpleString) else []
