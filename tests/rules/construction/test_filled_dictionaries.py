"""FSDP101: a dictionary of arguments that the function fills before it unpacks it."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

HEAD = """\
import torch
from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy


def wrap(model, args):
"""


def text_of(body: str) -> str:
    result = rewrite(HEAD + textwrap.indent(textwrap.dedent(body).strip(), "    ") + "\n")
    assert isinstance(result, Changed), result
    return result.source.decode().partition("def wrap")[2]


def test_a_key_that_a_condition_sets_is_chosen_at_the_call() -> None:
    text = text_of("""
        options = dict(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True)
        if args.bf16:
            options["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
        if args.offload:
            options["cpu_offload"] = CPUOffload(offload_params=True)
        return FSDP(model, **options)
    """)
    assert "options" not in text and "fsdp_compat" not in text and "\n    if " not in text
    assert (
        "MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)\n        if args.bf16\n" in text
    )
    assert "offload_policy=CPUOffloadPolicy() if args.offload else OffloadPolicy()" in text
    assert "reshard_after_forward=False" in text


@pytest.mark.parametrize(
    "fill",
    [
        'options["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP',
        'options.update({"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP})',
        "options.update(sharding_strategy=ShardingStrategy.SHARD_GRAD_OP)",
        'options |= {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}',
    ],
)
def test_later_writes_replace_earlier_ones(fill: str) -> None:
    text = text_of(f"""
        options = {{"sharding_strategy": ShardingStrategy.NO_SHARD, "device_id": torch.cuda.current_device()}}
        {fill}
        return FSDP(model, **options)
    """)
    assert text.endswith("    return fully_shard(model, reshard_after_forward=False)\n") and "options" not in text


def test_branches_of_a_chain_become_one_choice() -> None:
    text = text_of("""
        options = {"use_orig_params": True}
        if args.kind == "zero2":
            options["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP
        elif args.kind == "zero3":
            options["sharding_strategy"] = ShardingStrategy.FULL_SHARD
        return FSDP(model, **options)
    """)
    assert "fsdp_compat" not in text and "options" not in text
    assert text.index('if args.kind == "zero2"') < text.index('if args.kind == "zero3"')


def test_other_statements_of_a_branch_stay() -> None:
    text = text_of("""
        options = {"use_orig_params": True}
        if args.frozen:
            model.requires_grad_(False)
            options["sync_module_states"] = True
        return FSDP(model, **options)
    """)
    assert "    if args.frozen:\n        model.requires_grad_(False)\n" in text
    assert "    if args.frozen:\n        for tensor in itertools.chain(" in text and "options" not in text


def test_two_wraps_share_one() -> None:
    text = text_of("""
        options = dict(device_id=torch.device("cpu"))
        if torch.cuda.is_available():
            options["device_id"] = torch.cuda.current_device()
        first = FSDP(model.first, **options)
        second = FSDP(model.second, **options)
        return first, second
    """)
    assert "    first = fully_shard(model.first)\n    second = fully_shard(model.second)\n" in text
    assert "options" not in text


@pytest.mark.parametrize(
    ("above", "reason"),
    [
        ('options["use_orig_params"] = False\nprint(options["use_orig_params"])', "something reads it"),
        ("args.fill(options)", "something may fill it"),
        ("options.pop('device_id')", "something is taken out"),
        ("for key in args.keys:\n    options[key] = True", "keys that only the run knows"),
        ('if args.a:\n    options["device_id"] = args.pick()', "a value that is computed there"),
        ('other = options\nother["use_orig_params"] = False', "a second name"),
        ('def later():\n    options["use_orig_params"] = False\nlater()', "a function inside"),
        ('while args.a():\n    options["use_orig_params"] = False', "a loop"),
        ('if args.a:\n    options["limit_all_gathers"] = True\nelse:\n    args.b()', "an arm that would be empty"),
        ('if args.a:\n    options["limit_all_gathers"] = True\nargs.a = False', "a condition that changes"),
        ('if args.next():\n    options["sync_module_states"] = True', "a condition that does something"),
        ('options["device_id"] = args.next()\noptions["device_id"] = args.device', "a replaced value that is computed"),
        ('if args.next():\n    options["device_id"] = 1\noptions["device_id"] = 0', "a replaced choice of a call"),
        ('if args.a:\n    options["limit_all_gathers"] = True\nargs.a += 1', "a condition that is counted"),
        (
            'if args.a:\n    options["limit_all_gathers"] = True\nargs.a, b = 0, 1',
            "a condition set with others",
        ),
        ('if args.a:\n    options["limit_all_gathers"] = True\nargs.update()', "a method that may change a condition"),
    ],
    ids=lambda value: value if " " in value and "\n" not in value and "(" not in value else "",
)
def test_what_else_happens_to_it_keeps_it(above: str, reason: str) -> None:
    made = 'options = {"use_orig_params": True, "device_id": torch.device("cpu")}'
    text = text_of(f"{made}\n{above}\nreturn FSDP(model, **options)")
    assert "fsdp_compat.shard(model, **options)" in text, reason
    assert 'options = {"use_orig_params": True' in text


def test_a_wrap_that_stays_with_the_helper_keeps_it() -> None:
    text = text_of("""
        options = {"device_id": torch.cuda.current_device()}
        if args.bf16:
            options["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)
        first = FSDP(model.first, **options)
        return first, FSDP(model.second, auto_wrap_policy=args.policy(), **options)
    """)
    assert "fsdp_compat.shard(model.second" in text
    assert 'options["mixed_precision"] = MixedPrecision(param_dtype=torch.bfloat16)' in text


def test_what_a_plain_dictionary_reads_may_not_change_either() -> None:
    text = text_of("""
        options = {"device_id": args.device, "use_orig_params": True}
        args.device = 3
        return FSDP(model, **options)
    """)
    assert "fsdp_compat.shard(model, **options)" in text


@pytest.mark.parametrize("fill", ["", 'more["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP'])
@pytest.mark.parametrize("above", ["", 'options["use_orig_params"] = False'])
def test_a_second_name_that_it_is_made_with_keeps_it(above: str, fill: str) -> None:
    text = text_of(f"options = more = {{}}\n{above}\n{fill}\nreturn FSDP(model, **options)")
    assert "options = more = {}" in text and "fsdp_compat.shard(model, **options)" in text


def test_a_key_that_is_written_twice_keeps_it() -> None:
    text = text_of('return FSDP(model, **{"device_id": args.next(), "device_id": 0})')
    assert "args.next()" in text
