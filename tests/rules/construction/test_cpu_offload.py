"""FSDP105: parameters on the host."""

from __future__ import annotations

import pytest

from tests.rules.construction.helpers import is_native, wrapped
from tests.rules.helpers import findings

CHOSEN = "CPUOffloadPolicy() if {} else OffloadPolicy()"


@pytest.mark.parametrize("value", ["None", "CPUOffload()", "CPUOffload(False)", "CPUOffload(offload_params=False)"])
def test_off(value: str) -> None:
    assert "fully_shard(model)" in wrapped(f"cpu_offload={value}")


def test_on() -> None:
    assert "fully_shard(model, offload_policy=CPUOffloadPolicy())" in wrapped("cpu_offload=CPUOffload(True)")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("CPUOffload(offload_params=args.cpu)", CHOSEN.format("args.cpu")),
        ("CPUOffload(offload_params=True) if args.cpu else None", CHOSEN.format("args.cpu")),
    ],
)
def test_decided_at_run_time(value: str, written: str) -> None:
    text = wrapped(f"cpu_offload={value}")
    assert is_native(text) and f"offload_policy={written}" in text


def test_branches() -> None:
    text = wrapped("cpu_offload=offload", "if args.cpu:\n    offload = CPUOffload(True)\nelse:\n    offload = None")
    assert is_native(text) and "offload = OffloadPolicy()" in text and "offload_policy=offload)" in text


@pytest.mark.parametrize("value", ["args.offload", "CPUOffload(*args.offload)"])
def test_what_is_not_seen_is_left_to_the_helper(value: str) -> None:
    assert "fsdp_compat.shard(" in wrapped(f"cpu_offload={value}")


@pytest.mark.parametrize(
    ("use", "advised"),
    [
        ("def clip(model):\n    model.clip_grad_norm_(1.0)\n", False),
        (
            "from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler\nscaler = ShardedGradScaler()\n",
            False,
        ),
        ("def clip(model):\n    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", True),
        ("", True),
    ],
)
def test_another_file_starts_the_group_and_clips(use: str, advised: bool) -> None:
    start = (
        f"import torch\nimport torch.distributed as dist\n\ndef start():\n    dist.init_process_group('nccl')\n\n{use}"
    )
    source = (
        "from start import start\nfrom torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP\n\n"
        "def build(net):\n    return FSDP(net, cpu_offload=CPUOffload(True))\n"
    )
    (found,) = (each for each in findings(source, start=start) if each.rule == "FSDP105")
    assert ("start the process group" in found.advice) is advised
