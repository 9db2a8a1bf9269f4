"""FSDP102: strategies that are known, and those that are chosen at run time."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.construction.helpers import is_native, wrapped
from tests.rules.helpers import rewrite

TABLE = '{{"a": ShardingStrategy.{}, "b": ShardingStrategy.{}}}[args.name]'


@pytest.mark.parametrize(
    ("strategy", "written"),
    [
        ("None", "fully_shard(model)"),
        ("ShardingStrategy.FULL_SHARD", "fully_shard(model)"),
        ('ShardingStrategy["SHARD_GRAD_OP"]', "fully_shard(model, reshard_after_forward=False)"),
        ("ShardingStrategy.HYBRID_SHARD", "// per_node, per_node)"),
        ("ShardingStrategy._HYBRID_SHARD_ZERO2", "fully_shard(model, mesh=mesh, reshard_after_forward=False)"),
        ("ShardingStrategy.NO_SHARD", "(dist.get_world_size(), 1)"),
    ],
)
def test_known(strategy: str, written: str) -> None:
    text = wrapped(f"sharding_strategy={strategy}")
    assert is_native(text) and written in text and "ShardingStrategy" not in text


def test_a_table_becomes_one_of_arguments() -> None:
    text = wrapped("sharding_strategy=" + TABLE.format("FULL_SHARD", "SHARD_GRAD_OP"))
    assert is_native(text)
    assert 'sharding = {"a": {}, "b": {"reshard_after_forward": False}}[args.name]' in text
    assert "fully_shard(model, **sharding)" in text


def test_a_table_does_not_make_the_meshes_that_are_not_chosen() -> None:
    text = wrapped("device_id=0, sharding_strategy=" + TABLE.format("HYBRID_SHARD", "FULL_SHARD"))
    assert is_native(text)
    assert '"a": {"mesh": (dist.get_world_size() // per_node, per_node)}, "b": {}' in text
    assert 'if "mesh" in sharding:\n        mesh = init_device_mesh("cuda", sharding["mesh"]' in text


def test_branches_stay_branches() -> None:
    above = """
        if args.name == "full":
            strategy = ShardingStrategy.FULL_SHARD
        elif args.name == "zero2":
            strategy = ShardingStrategy.SHARD_GRAD_OP
        else:
            raise ValueError(args.name)
        print(f"{strategy}")
    """
    text = wrapped("sharding_strategy=strategy", above)
    assert is_native(text)
    assert "        strategy = {}\n" in text and '        strategy = {"reshard_after_forward": False}\n' in text
    assert "fully_shard(model, **strategy)" in text


def test_a_name_that_is_looked_up_by_its_own_earlier_value() -> None:
    above = "name = " + TABLE.format("FULL_SHARD", "SHARD_GRAD_OP").replace("args.name", "name")
    text = wrapped("sharding_strategy=name", above, "model, name")
    assert is_native(text) and "fully_shard(model, **name)" in text


def test_what_is_not_seen_is_left_to_the_helper() -> None:
    assert "fsdp_compat.shard(" in wrapped("sharding_strategy=args.strategy()")


@pytest.mark.parametrize(
    "above",
    [
        "strategy = ShardingStrategy.FULL_SHARD if args.full else ShardingStrategy.NO_SHARD\nargs.keep(strategy)",
        "strategy = ShardingStrategy.FULL_SHARD\nfor one in args.names:\n    strategy = one",
    ],
)
def test_a_strategy_that_other_code_reads_stays_one(above: str) -> None:
    text = wrapped("sharding_strategy=strategy", above)
    assert is_native(text) and "strategy = ShardingStrategy.FULL_SHARD" in text
    assert "sharding_arguments(strategy.name, " in text


def test_any_name_is_mapped_by_a_function() -> None:
    text = wrapped("sharding_strategy=ShardingStrategy[args.strategy], device_id=0")
    assert is_native(text) and 'sharding = sharding_arguments(args.strategy, "cuda")' in text
    assert "raise ValueError" in text and "ShardingStrategy" not in text.partition("def build")[2]
    assert 'sharding_arguments(args.strategy.name, "cuda")' in wrapped("sharding_strategy=args.strategy, device_id=0")


def test_a_default_that_no_call_replaces() -> None:
    parameters = "model, strategy=ShardingStrategy.SHARD_GRAD_OP"
    text = wrapped("sharding_strategy=strategy", parameters=parameters)
    assert is_native(text) and 'strategy={"reshard_after_forward": False}' in text
    caller = "from example import build\n# FSDP\nbuild(net, ShardingStrategy.NO_SHARD)\n"
    assert "sharding_arguments(strategy.name" in wrapped(
        "sharding_strategy=strategy", parameters=parameters, main=caller
    )


def test_a_function_of_the_module_has_its_names_at_the_top() -> None:
    source = (
        "import torch\n\n\ndef build(net, args):\n"
        "    from torch.distributed.device_mesh import init_device_mesh\n"
        "    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        '    mesh = init_device_mesh("cuda", (8,))\n'
        "    return FSDP(net, sharding_strategy=args.strategy, device_mesh=mesh)\n"
    )
    result = rewrite(source)
    assert isinstance(result, Changed)
    top = result.source.decode().partition("def sharding_arguments(")[0]
    assert "from torch.distributed.device_mesh import init_device_mesh\n" in top


@pytest.mark.parametrize(
    "strategy",
    [
        "TABLE.get(name)",
        "TABLE.get(name, other)",
        "getattr(ShardingStrategy, name, None)",
        "ShardingStrategy[name.replace('-', '_')]",
        "pick(name)",
    ],
)
def test_a_table_that_may_give_something_else_is_left_to_the_helper(strategy: str) -> None:
    """Another key, another default, another spelling, or meshes that a table would make for all of its entries."""
    source = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

TABLE = {{"a": ShardingStrategy.FULL_SHARD, "b": ShardingStrategy.SHARD_GRAD_OP}}

def pick(name):
    return {{"a": ShardingStrategy.FULL_SHARD, "b": ShardingStrategy.HYBRID_SHARD}}[name]

def build(model, name, other):
    return FSDP(model, sharding_strategy={strategy})
"""
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert "fsdp_compat.shard(" in result.source.decode()


@pytest.mark.parametrize(("device", "native"), [("torch.cuda.current_device()", True), ('torch.device("cpu")', False)])
def test_a_table_of_a_module_makes_no_mesh_when_it_is_imported(device: str, native: bool) -> None:
    source = f"""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

TABLE = {{"a": ShardingStrategy.FULL_SHARD, "b": ShardingStrategy.SHARD_GRAD_OP}}

def pick(name):
    return TABLE[name]

def build(model, name):
    return FSDP(model, sharding_strategy=pick(name), device_id={device})
"""
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert ("fsdp_compat" not in result.source.decode()) == native


def test_the_function_for_names_is_written_once_and_choices_of_a_parser_are_kept() -> None:
    choices = 'parser.add_argument("--strategy", choices=["FULL_SHARD", "NO_SHARD"], help="how FSDP shards")'
    source = f"""\
import argparse
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

parser = argparse.ArgumentParser()
{choices}
args = parser.parse_args()
model = FSDP(model, sharding_strategy=ShardingStrategy[args.strategy], device_id=0)
other = FSDP(other, sharding_strategy=ShardingStrategy[args.strategy], device_id=0)
"""
    result = rewrite(source)
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert is_native(text) and text.count("def sharding_arguments(") == 1
    assert text.count('sharding_arguments(args.strategy, "cuda")') == 2
    assert f"\n{choices}\n" in text


@pytest.mark.parametrize("given", ['{"sharding_strategy": args.kind, "device_mesh": mesh}', "dict(device_mesh = mesh)"])
def test_the_function_takes_a_mesh_that_a_dictionary_gives(given: str) -> None:
    own = "" if "sharding" in given else "sharding_strategy=args.kind, "
    result = rewrite(
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        'def build(net, args):\n    mesh = init_device_mesh("cpu", (2, 2))\n'
        f"    options = {given}\n    return FSDP(net, {own}**options)\n"
    )
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert ", mesh)" in text.partition("sharding = sharding_arguments(")[2].partition("\n")[0]
    assert "def sharding_arguments(name, device_type, mesh=None):" in text


@pytest.mark.parametrize("line", ["device_mesh = args.mesh_shape", 'report({"device_mesh": args.mesh_shape})'])
def test_the_function_takes_no_mesh_that_no_wrap_is_given(line: str) -> None:
    result = rewrite(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n\n"
        f"def build(net, args, report):\n    {line}\n"
        "    return FSDP(net, sharding_strategy=ShardingStrategy[args.kind], device_id=0)\n"
    )
    assert isinstance(result, Changed)
    assert "def sharding_arguments(name, device_type):" in result.source.decode()
