"""FSDP115: a constructor with some of its arguments bound in advance."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_findings, check_noop, check_rewrites, findings, rewrite


def test_partials_of_other_things_are_left_alone() -> None:
    check_noop("import functools\n\nmake = functools.partial(Net, 3)\n")


def test_a_function_named_partial_is_not_functools() -> None:
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from tools import partial

        make = partial(FSDP, device_id=0)
        """
    check_findings(source, {("FSDP901", "manual")})


def test_arguments_and_their_configurations_stay() -> None:
    check_rewrites(
        """
        import functools
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision, ShardingStrategy

        make = functools.partial(
            FullyShardedDataParallel,
            sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # ZeRO-2
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        )
        """,
        """
        import functools
        import fsdp_compat
        import torch
        from fsdp_compat import MixedPrecision, ShardingStrategy

        make = functools.partial(
            fsdp_compat.shard,
            sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,  # ZeRO-2
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16),
        )
        """,
    )


def test_without_helpers_nothing_is_rewritten() -> None:
    source = """
        import functools
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        make = functools.partial(FSDP, device_id=0)
        """
    check_findings(source, {("FSDP115", "manual")}, Settings(helpers="never"))


HEAD = """\
import functools
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

def build(model, args):
    make = functools.partial(FSDP, {bound})
"""


@pytest.mark.parametrize(
    ("bound", "calls", "reason"),
    [
        ("device_id=0", "return args.apply(make)", "make is called, and also read on line 7"),
        (
            "device_id=0",
            "make = make or FSDP\n    return make(model)",
            "not every call in this file uses the same name",
        ),
        ("device_id=0", "return make(model, **args)", "the call on line 7 passes more than the module by position"),
        ("process_group=args.new()", "return make(model)", "args.new() is computed once and used by every call"),
        ("*args", "return make(model)", "not all of its arguments are keyword arguments"),
        (
            "device_mesh=args.mesh",
            "return [make(part) for part in args(make(model, sharding_strategy=args.strategy))]",
            "several statements are needed, but only an expression is possible here",
        ),
        (
            "device_id=args.rank",
            "def wrap(args):\n        return make(args)\n    return wrap(model)",
            "the call on line 8 has different values for the same arguments",
        ),
        ("device_id=0", "return make(model)  # fsdp-migrate: ignore", "the call on line 7 is unchanged"),
    ],
)
def test_calls_that_keep_the_helper(bound: str, calls: str, reason: str) -> None:
    (found,) = [one for one in findings(f"{HEAD.format(bound=bound)}    {calls}\n") if one.rule == "FSDP115"]
    assert found.message.endswith(f"where this partial object is called: {reason}")


def test_calls_of_one_partial_take_its_arguments_and_their_own() -> None:
    source = HEAD.format(bound="sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True")
    after = """\
import torch
from torch.distributed.fsdp import fully_shard

def build(model, args):
    for part in model.parts:
        part = fully_shard(part, reshard_after_forward=False)
    fully_shard(model.head)
    return fully_shard(model, reshard_after_forward=False)
"""
    source += "    for part in model.parts:\n        part = make(part)\n"
    source += (
        "    model.head = make(model.head, sharding_strategy=ShardingStrategy.FULL_SHARD)\n    return make(model)\n"
    )
    check_rewrites(source, after.replace("part = fully_shard", "fully_shard"))


def test_another_file_that_imports_the_partial_keeps_it() -> None:
    source = """
        import functools
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        make = functools.partial(FSDP, device_id=0)
        model = make(model)
        """
    (found,) = [one for one in findings(source, other="# FSDP\nfrom example import make\n") if one.rule == "FSDP115"]
    assert found.message.endswith("not every call in this file uses the same name")


@pytest.mark.parametrize(
    "wrap",
    [
        "shard = functools.partial(FSDP, use_orig_params=True)\n    model = shard(model)",
        "with enable_wrap(wrapper_cls=FSDP, use_orig_params=True):\n        model = wrap(model)",
    ],
)
def test_a_model_on_the_meta_device_is_initialised(wrap: str) -> None:
    source = f"""\
import functools
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap

def build(config):
    with torch.device("meta"):
        model = Net(config)
    {wrap}
    return model
"""
    result = rewrite(source)
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert "fsdp_compat" not in text and "    reset_unit(model, torch.accelerator.current_accelerator())" in text
