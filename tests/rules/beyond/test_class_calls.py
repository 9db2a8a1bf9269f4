"""FSDP901: methods of a model that are called on FSDP1's class, and other values of it."""

from __future__ import annotations

import inspect

import pytest
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp_rules.fsdp1.methods import METHODS
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

HEAD = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def run(net, x, fn):
    model = FSDP(net)
    loss = model(x).sum()
    """


@pytest.mark.parametrize(
    ("line", "method"),
    [
        ("FSDP.train(model, False)", "train"),
        ("with FSDP.no_sync(model):\n        loss.backward()", "no_sync"),
        ("FSDP.forward(model, x)", "forward"),
        ("FSDP.__call__(model, x)", "__call__"),
        ("print(FSDP.state_dict(model))", "state_dict"),
        ("FSDP.apply(model, fn)", "apply"),
        ("for name, p in FSDP.named_parameters(model):\n        print(name)", "named_parameters"),
        ("FSDP.register_comm_hook(model, None, hook=fn)", "register_comm_hook"),
        ("step = FSDP.no_sync", "no_sync"),
        ("FSDP.no_sync(*models)", "no_sync"),
    ],
)
def test_a_method_of_the_model_is_advised_where_the_class_is_called(line: str, method: str) -> None:
    source = HEAD + line + "\n"
    result = rewrite(source)
    assert isinstance(result, Changed)
    (found,) = [entry for entry in result.findings if entry.rule == "FSDP901"]
    assert found.level.value == "manual"
    advice = f"call {method} on the model itself where this value is used, and run this tool again"
    assert found.advice == advice
    assert line.encode() in result.source


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        (
            "step = FSDP.optim_state_dict",
            "call FSDP.optim_state_dict(...) itself where this value is used, and run this tool",
        ),
        ("step = {1: FSDP}", "call fully_shard(module, ...) where this value is used"),
    ],
)
def test_other_values_have_an_advice_of_their_own(line: str, advice: str) -> None:
    (found,) = [entry.advice for entry in findings(HEAD + line + "\n") if entry.rule == "FSDP901"]
    assert found.startswith(advice)


def test_the_methods_are_those_of_torch() -> None:
    """Of torch's class as it is here; older and newer ones have one or two others."""
    members = {name: inspect.getattr_static(FullyShardedDataParallel, name) for name in dir(FullyShardedDataParallel)}
    own = {name for name, member in members.items() if not name.startswith("_") and inspect.isfunction(member)}
    statics = {name for name, member in members.items() if isinstance(member, staticmethod | classmethod)}
    assert not METHODS & statics
    assert own - METHODS == set()
