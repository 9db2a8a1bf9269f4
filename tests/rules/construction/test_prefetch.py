"""Rule FSDP113: forward_prefetch becomes a chain over the units, where that is what FSDP1 did."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

SOURCE = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
{imports}
from net import Block

def build(model, args):
    {wrap}
"""
WRAP = "FSDP(model, auto_wrap_policy=ModuleWrapPolicy({{Block}}), forward_prefetch={})"
CHAIN = "set_modules_to_forward_prefetch"


def after(wrap: str, imports: str = "", **others: str) -> str:
    source = SOURCE.format(wrap=wrap, imports=imports)
    result = rewrite(source, **others)
    assert isinstance(result, Changed)
    again = rewrite(result.source, **others)
    assert not isinstance(again, Changed), "a second run changes the output"
    compile(result.source, "after.py", "exec")
    return result.source.decode()


def levels(wrap: str, imports: str = "") -> dict[str, str]:
    found = findings(SOURCE.format(wrap=wrap, imports=imports))
    return {one.rule: f"{one.level.value} {one.message}" for one in found}


@pytest.mark.parametrize("form", ["model = {}\n    return model", "return {}", "wrapped = {}\n    return wrapped"])
def test_each_unit_gathers_the_next_one(form: str) -> None:
    wrap = form.format(WRAP.format("True"))
    text = after(wrap)
    assert "units = [part for part in model.modules() if isinstance(part, FSDPModule)]" in text
    assert "for part, following in zip(units, units[1:]):" in text
    assert text.index("fully_shard(model)") < text.index(CHAIN)
    said = levels(wrap)
    assert said["FSDP113"].startswith("safe")
    assert said["FSDP101"].startswith("review") and "forward_prefetch" in said["FSDP101"]


def test_a_name_for_true_is_true() -> None:
    assert CHAIN in after("early = True\n    return " + WRAP.format("early"))


@pytest.mark.parametrize("value", ["args.early", "bool(args)"])
def test_a_value_of_run_time_is_for_the_reader(value: str) -> None:
    wrap = "return " + WRAP.format(value)
    assert CHAIN not in after(wrap)
    assert levels(wrap)["FSDP113"].startswith("review")


@pytest.mark.parametrize(
    "imports",
    [
        "from torch.utils.checkpoint import checkpoint",
        "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper",
    ],
)
def test_nothing_is_gathered_early_where_activations_are_recomputed(imports: str) -> None:
    wrap = "return " + WRAP.format("True")
    assert CHAIN not in after(wrap, imports)
    assert "recomputation" in levels(wrap, imports)["FSDP113"]


@pytest.mark.parametrize("value", ["False", "None"])
def test_where_fsdp1_had_it_off_it_is_off(value: str) -> None:
    assert CHAIN not in after("return " + WRAP.format(value))


def test_the_helper_gets_the_argument_as_it_is() -> None:
    wrap = "return " + WRAP.format("True, sharding_strategy=choose(args)")
    text = after(wrap)
    assert "forward_prefetch=True" in text and CHAIN not in text
    assert levels(wrap)["FSDP113"] == "safe forward_prefetch is passed to fsdp_compat.shard"
