"""Layouts that cut blocks into parts: their printed code, and what they say of the order of sums."""

from __future__ import annotations

from dataclasses import replace

from fsdp_migrate.tune.layout_code import code
from fsdp_migrate.tune.proposals import proposals
from fsdp_migrate.tune.sharding_layout import Layout, Unit
from tests.tune.models import recorded


def test_parts_of_each_block_are_made_in_one_loop() -> None:
    model = recorded("language")
    blocks = tuple(Unit((model.by_name[f"blocks.{number}"],)) for number in range(3))
    offered = {each.layout.name: each for each in proposals(model, Layout("now", (*blocks, Unit((0,))), 2), 8)}
    parts = offered["blocks in parts"].layout
    # A norm is too small for a unit of its own, and remains with its block.
    assert code(model, parts, "cpu").endswith("""
for unit in model.blocks:
    fully_shard(unit.up, **fsdp)
    fully_shard(unit.down, **fsdp)
    fully_shard(unit, **fsdp)
fully_shard(model, **fsdp)""")
    last = offered["blocks in parts, last whole"].layout
    assert code(model, last, "cpu").endswith("""
for unit in model.blocks[0:2]:
    fully_shard(unit.up, **fsdp)
    fully_shard(unit.down, **fsdp)
    fully_shard(unit, **fsdp)
fully_shard(model.blocks[2].up, reshard_after_forward=False, **fsdp)
fully_shard(model.blocks[2].down, reshard_after_forward=False, **fsdp)
fully_shard(model.blocks[2], reshard_after_forward=False, **fsdp)
fully_shard(model, **fsdp)""")


def test_several_modules_of_each_block_are_made_in_one_loop() -> None:
    model = recorded("language")
    at = model.by_name
    pairs = tuple(Unit((at[f"blocks.{number}.up"], at[f"blocks.{number}.down"])) for number in range(3))
    ends = (Unit((at["norm"], at["head"]), False), Unit((0,)))
    assert code(model, Layout("", (*pairs, *ends), 2), "cpu").endswith("""
for unit in model.blocks:
    fully_shard([unit.up, unit.down], **fsdp)
fully_shard([model.norm, model.head], reshard_after_forward=False, **fsdp)
fully_shard(model, **fsdp)""")


def test_a_unit_whose_input_others_read_too_changes_the_order_of_sums() -> None:
    model = recorded("wide residual")
    assert {model.modules[place].name for place in model.parted} == {f"blocks.{number}.fork" for number in (1, 2)}
    blocks = tuple(Unit((model.by_name[f"blocks.{number}"],)) for number in range(3))
    forks = tuple(Unit((model.by_name[f"blocks.{number}.fork"],)) for number in range(3))
    now = Layout("now", (*blocks, Unit((0,))), 2)
    offered = {each.layout.name: each.order for each in proposals(model, now, 8)}
    assert offered["now"] == offered["whole after forward"] == ""
    told = "sums gradients around blocks.1.fork in a different order, since other modules use its input too"
    assert offered["blocks in parts"] == told
    # Of a program whose own units do so, these layouts keep the numbers, and the others change them.
    parts = replace(now, units=(*forks, *now.units))
    offered = {each.layout.name: each.order for each in proposals(model, parts, 8)}
    assert (offered["now"], offered["blocks"], offered["blocks in parts"]) == ("", told, "")
