"""Asynchronous saves, which need a process group for the CPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

SOURCE = """
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import {sharding}

dist.init_process_group({backend})
{wrap}
{save}
"""
SAVE = "dcp.async_save(state, checkpoint_id=path)"


def levels(backend: str, save: str = SAVE, fsdp1: bool = True) -> list[str]:
    sharding = "FullyShardedDataParallel as FSDP" if fsdp1 else "fully_shard"
    wrap = "model = FSDP(net)" if fsdp1 else "fully_shard(net)"
    source = SOURCE.format(sharding=sharding, backend=backend, wrap=wrap, save=save)
    return [one.level.value for one in findings(source, Settings(traps=True)) if one.rule == "FSDP318"]


@pytest.mark.parametrize("fsdp1", [True, False])
def test_a_save_under_nccl_alone(fsdp1: bool) -> None:
    assert levels('"nccl"', fsdp1=fsdp1) == ["manual"]
    assert levels('backend="nccl"', fsdp1=fsdp1) == ["manual"]
    assert levels('"nccl"', "dcp.async_save(state, **options)", fsdp1=fsdp1) == ["review"]


@pytest.mark.parametrize(
    ("backend", "save"),
    [
        ('"cpu:gloo,cuda:nccl"', SAVE),
        ("", SAVE),
        ('"gloo"', SAVE),
        ('"nccl"', "dcp.async_save(state, checkpoint_id=path, process_group=gloo)"),
        ('"nccl"', "dcp.save(state, checkpoint_id=path)"),
    ],
)
def test_saves_that_have_a_group_for_the_cpu(backend: str, save: str) -> None:
    assert levels(backend, save) == []


@pytest.mark.parametrize(("backend", "expected"), [('"nccl"', ["manual"]), ('"cpu:gloo,cuda:nccl"', [])])
def test_a_group_that_another_file_starts(backend: str, expected: list[str]) -> None:
    saves = f"import torch.distributed.checkpoint as dcp\n\ndef save(state, path):\n    return {SAVE}\n"
    main = SOURCE.format(
        sharding="FullyShardedDataParallel as FSDP",
        backend=backend,
        wrap="from example import save\nmodel = FSDP(net)",
        save="save(model.state_dict(), 'saved')",
    )
    found = findings(saves, Settings(traps=True), main=main)
    assert [one.level.value for one in found if one.rule == "FSDP318"] == expected


def test_torch_refuses_a_group_without_a_cpu_backend(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("saved")
    dist.init_process_group("cuda:gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        with pytest.raises(AssertionError, match="A CPU backend must be enabled for async save"):
            dcp.async_save({"weight": torch.ones(2)}, checkpoint_id=folder)
    finally:
        dist.destroy_process_group()
