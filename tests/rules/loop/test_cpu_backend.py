"""``init_process_group("nccl")`` in the file that clips a model whose gradients are on the CPU."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_rewrites, rewrite

PROGRAM = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import CPUOffload
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def step(model):
    model = FSDP(model, cpu_offload=CPUOffload(offload_params=True){wrap})
    return model.clip_grad_norm_(1.0)

def main(model, ranks):
    {start}
    {more}
    step(model)
"""
HELPER = b"fsdp_compat.clip_grad_norm_(model, 1.0)"
NATIVE = b"torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)"


def output(start: str, more: str = "pass", wrap: str = "", settings: Settings | None = None, **others: str) -> bytes:
    result = rewrite(PROGRAM.format(start=start, more=more, wrap=wrap), settings, **others)
    assert isinstance(result, Changed), result
    return result.source


@pytest.mark.parametrize(
    ("start", "started"),
    {
        "a literal": ("dist.init_process_group('nccl')", "dist.init_process_group('cpu:gloo,cuda:nccl')"),
        "a keyword": (
            'dist.init_process_group(rank=0, backend="nccl")',
            'dist.init_process_group(rank=0, backend="cpu:gloo,cuda:nccl")',
        ),
        "a choice": (
            "dist.init_process_group('nccl' if torch.cuda.is_available() else 'gloo')",
            "dist.init_process_group('cpu:gloo,cuda:nccl' if torch.cuda.is_available() else 'gloo')",
        ),
        "a device": (
            "dist.init_process_group('nccl', device_id=torch.device('cuda'))",
            "dist.init_process_group('cpu:gloo,cuda:nccl', device_id=torch.device('cuda'))",
        ),
    }.values(),
)
def test_the_call_gets_a_backend_for_the_cpu(start: str, started: str) -> None:
    found = output(start)
    assert started.encode() in found
    assert NATIVE in found
    assert b"fsdp_compat" not in found


@pytest.mark.parametrize(
    ("start", "more", "wrap"),
    {
        "a name": ("dist.init_process_group(ranks.backend)", "backend = 'nccl'", ""),
        "options": ("dist.init_process_group('nccl', pg_options=ranks)", "pass", ""),
        "stars": ("dist.init_process_group('nccl', **ranks)", "pass", ""),
        "a group of NCCL": ("dist.init_process_group('nccl')", "dist.new_group(list(ranks), backend='nccl')", ""),
        "its name": ("dist.init_process_group('nccl')", "assert dist.get_backend() == 'nccl'", ""),
        "a custom group": ("dist.init_process_group('nccl')", "pass", ", process_group=torch.group"),
        "a split mesh": (
            "dist.init_process_group('nccl', device_id=torch.device('cuda', 0))",
            "pass",
            ", device_mesh=torch.device_mesh",
        ),
        "a comment": ("dist.init_process_group('nccl')  # fsdp-migrate: ignore[FSDP232]", "pass", ""),
    }.values(),
)
def test_what_gloo_does_not_reach_takes_the_helper(start: str, more: str, wrap: str) -> None:
    found = output(start, more, wrap)
    assert start.encode() in found
    assert HELPER in found


def test_a_call_in_another_file_is_kept() -> None:
    start = "import torch.distributed as dist\n\ndef start():\n    dist.init_process_group('nccl')\n"
    assert HELPER in output("import starting", starting=start)


def test_helpers_always() -> None:
    found = output("dist.init_process_group('nccl')", settings=Settings(helpers="always"))
    assert HELPER in found
    assert b"dist.init_process_group('nccl')" in found


def test_a_file_that_clips_nothing_is_kept() -> None:
    """FSDP1 needed no backend for the CPU, and FSDP2 needs one to clip."""
    before = """
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffload
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def main(model):
        dist.init_process_group("nccl")
        return FSDP(model, cpu_offload=CPUOffload(offload_params=True))
    """
    after = """
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    def main(model):
        dist.init_process_group("nccl")
        return fully_shard(model, offload_policy=CPUOffloadPolicy())
    """
    check_rewrites(before, after)
