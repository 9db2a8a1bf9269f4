"""FSDP107: meshes and process groups."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.construction.helpers import is_native, wrapped
from tests.rules.helpers import findings, rewrite

HYBRID = "sharding_strategy=ShardingStrategy.HYBRID_SHARD"


def test_nothing_is_given() -> None:
    assert "fully_shard(model)" in wrapped("process_group=None, device_mesh=None")


def test_a_group_becomes_a_mesh() -> None:
    text = wrapped("process_group=args.group, device_id=0")
    assert is_native(text) and 'fully_shard(model, mesh=DeviceMesh.from_group(args.group, "cuda"))' in text


def test_a_group_that_may_be_none() -> None:
    text = wrapped("process_group=group, device_id=0", parameters="model, args, group=None")
    assert 'mesh=DeviceMesh.from_group(group, "cuda") if group is not None else None' in text


def test_two_groups_are_swapped() -> None:
    text = wrapped(f"process_group=(args.intra, args.inter), {HYBRID}, device_id=0")
    assert is_native(text) and "[args.inter, args.intra]," in text


def test_a_hybrid_strategy_takes_two_groups() -> None:
    text = wrapped(f"process_group=groups(), {HYBRID}, device_id=0")
    assert is_native(text) and "shard_group, replicate_group = groups()" in text


def test_no_shard_in_a_group() -> None:
    text = wrapped("process_group=args.group, sharding_strategy=ShardingStrategy.NO_SHARD, device_id=0")
    assert is_native(text) and "use_local_synchronization=True" in text and ".view(-1, 1)" in text


def test_a_mesh_of_two_dimensions_gets_names() -> None:
    text = wrapped(f"device_mesh=mesh, {HYBRID}", 'mesh = init_device_mesh("cuda", (2, 4))')
    assert 'mesh = init_device_mesh("cuda", (2, 4), mesh_dim_names=("replicate", "shard"))' in text
    assert is_native(text) and "fully_shard(model, mesh=mesh)" in text


def test_a_mesh_of_unknown_shape_is_passed_on() -> None:
    text = wrapped("device_mesh=args.mesh")
    assert is_native(text) and "fully_shard(model, mesh=args.mesh)" in text


def test_one_group_or_two() -> None:
    above = """
        if args.hybrid:
            group = (args.intra, args.inter)
        else:
            group = args.group
    """
    assert "fsdp_compat.shard(" in wrapped("process_group=group", above)


CHOSEN = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

def build(model, strategy, shard, replicate):
    if strategy == "hsdp":
        group = {pair}
    else:
        group = {one}
    {more}
    kinds = {{"hsdp": ShardingStrategy.HYBRID_SHARD, "fsdp": ShardingStrategy.FULL_SHARD}}
    model = FSDP(model, process_group=group, sharding_strategy=kinds[strategy])
    return model
"""


@pytest.mark.parametrize(
    ("pair", "one", "more", "native"),
    [
        ("(shard, replicate)", "shard", "pass", True),
        ("(shard, replicate())", "make(shard)", "print(group)", True),
        ("(shard, replicate)", "None", "pass", False),
        ("(shard, replicate, 2)", "shard", "pass", False),
        ("(shard, replicate)", "shard", "model.group = group", False),
        ("(shard, replicate) if shard else None", "shard", "pass", False),
    ],
)
def test_branches_that_choose_one_group_or_two_make_a_mesh(pair: str, one: str, more: str, native: bool) -> None:
    result = rewrite(CHOSEN.format(pair=pair, one=one, more=more))
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert ("DeviceMesh.from_group(" in text) is native
    assert ("fsdp_compat.shard(" in text) is not native
    level = next(found.level.value for found in result.findings if found.rule == "FSDP107")
    assert level == "review" or not native


@pytest.mark.parametrize(("group", "level"), [('"nccl"', "manual"), ("None", None), ("args.group", "safe")])
def test_a_text_is_no_group(group: str, level: str | None) -> None:
    source = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, args):
    return FSDP(model, process_group={group})
"""
    found = [one.level.value for one in findings(source) if one.rule == "FSDP107"]
    assert found == ([level] if level else [])
