"""Clipping of models whose units are sharded over several meshes, for which torch's function raises."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

TRAIN = """
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(net, args, ranks, mesh):
    pairs, world = dist.new_group(ranks), init_device_mesh("cuda", (8,))
    {wraps}
    return model

def train(net, args, ranks, mesh, batches):
    model = build(net, args, ranks, mesh)
    for batch in batches:
        model(batch).sum().backward()
        model.clip_grad_norm_(1.0)
"""
SEVERAL = {
    "a group for one unit": ("net.a = FSDP(net.a, process_group=pairs)", "model = FSDP(net)"),
    "a group and a mesh": ("net.a = FSDP(net.a, process_group=pairs)", "model = FSDP(net, device_mesh=world)"),
    "a part of a mesh": ('net.a = FSDP(net.a, device_mesh=mesh["b"])', "model = FSDP(net, device_mesh=world)"),
    "in a loop": ("for at, one in enumerate(net.a): net.a[at] = FSDP(one, process_group=pairs)", "model = FSDP(net)"),
}
ONE = {
    "one mesh": ("net.a = FSDP(net.a, device_mesh=world)", "model = FSDP(net, device_mesh=world)"),
    "no mesh": ("net.a = FSDP(net.a)", "model = FSDP(net)"),
    "None": ("net.a = FSDP(net.a, process_group=None)", "model = FSDP(net)"),
    "one of two wraps": ("model = FSDP(net, device_mesh=world) if args.mesh else FSDP(net)",),
}


def clipping(wraps: tuple[str, ...], settings: Settings | None = None) -> tuple[str, str]:
    """The level and the message about clipping."""
    every = findings(TRAIN.format(wraps="\n    ".join(wraps)), settings)
    ((level, message),) = [(one.level.value, one.message) for one in every if one.rule == "FSDP201"]
    return level, message


@pytest.mark.parametrize("wraps", SEVERAL.values(), ids=SEVERAL)
def test_units_over_several_meshes_are_clipped_by_the_helper(wraps: tuple[str, ...]) -> None:
    level, message = clipping(wraps)
    assert level == "safe"
    assert message.endswith("since units may be sharded over several meshes, where torch's clip_grad_norm_ raises")
    assert clipping(wraps, Settings(helpers="never"))[0] == "manual"


@pytest.mark.parametrize("wraps", ONE.values(), ids=ONE)
def test_units_over_one_mesh_are_clipped_by_torch(wraps: tuple[str, ...]) -> None:
    assert clipping(wraps)[1].endswith("since all parameters share a mesh")


def test_torchs_function_is_reported_where_it_raises() -> None:
    source = TRAIN.replace("model.clip_grad_norm_(1.0)", "torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
    for wraps, raises in (*((one, True) for one in SEVERAL.values()), (ONE["one mesh"], False)):
        every = findings("import torch\n" + source.format(wraps="\n    ".join(wraps)))
        (message,) = [one.message for one in every if one.rule == "FSDP215"]
        assert ("units may be sharded over several meshes, which raises" in message) is raises
