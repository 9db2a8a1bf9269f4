"""Rule FSDP240: a sharded model that is called with parameters that are given to it."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_noop, findings

SOURCE = """
import torch
from torch.func import functional_call, grad, vmap
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def run(net, x, scale, other):
    model = FSDP(net, use_orig_params=True)
    {line}
"""


def levels(line: str, to: str = "native") -> list[str]:
    found = findings(SOURCE.format(line=line), Settings(to=to))
    return [one.level.value for one in found if one.rule == "FSDP240"]


def test_noop_without_fsdp() -> None:
    check_noop("from torch.func import functional_call\n\ndef run(model, p, x):\n    functional_call(model, p, (x,))\n")


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    "line",
    [
        "functional_call(model, {k: v.detach() * scale for k, v in model.named_parameters()}, (x,))",
        "given = {k: v - scale for k, v in model.named_parameters()}\n    functional_call(model, given, (x,))",
        "torch.func.functional_call(model, other, x)",
        "torch.func.functional_call(module=model, parameter_and_buffer_dicts=dict(other.named_parameters()), args=x)",
        "torch.nn.utils.stateless.functional_call(model, {'weight': scale}, (x,))",
    ],
)
def test_other_parameters_are_manual(line: str, to: str) -> None:
    assert levels(line, to) == ["manual"]


def test_flat_parameters_are_never_written() -> None:
    line = "functional_call(model, {k: v / 2 for k, v in model.named_parameters()}, (x,))"
    source = SOURCE.format(line=line)
    for flags, level in ((", use_orig_params=False", "review"), ("", "review"), (", **other", "manual")):
        found = findings(source.replace(", use_orig_params=True", flags))
        assert [one.level.value for one in found if one.rule == "FSDP240"] == [level], flags


@pytest.mark.parametrize(
    "line",
    [
        "functional_call(model, dict(model.named_parameters()), (x,))",
        "functional_call(model, {**dict(model.named_parameters()), **dict(model.named_buffers())}, (x,))",
        "functional_call(model, {k: v.detach() for k, v in model.named_parameters()}, (x,))",
        "own = dict(model.named_parameters())\n    functional_call(model, (own, dict(model.named_buffers())), x)",
        "functional_call(other, {k: v * 2 for k, v in other.named_parameters()}, (x,))",
        "vmap(lambda one: model(one))(x)",
        # FSDP1 raises there.
        "grad(lambda one: model(one).sum())(x)",
        "with FSDP.summon_full_params(model):\n        functional_call(model.module, {'w': scale}, (x,))",
    ],
)
def test_what_is_the_same_is_silent(line: str) -> None:
    assert levels(line) == []
