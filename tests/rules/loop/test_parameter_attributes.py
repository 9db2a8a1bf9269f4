"""FSDP219: what a program notes on parameters, and looks up on those of a sharded model."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"


def names(source: str, settings: Settings | None = None) -> list[str]:
    return [entry.message.split()[0] for entry in findings(source, settings) if entry.rule == "FSDP219"]


@pytest.mark.parametrize(
    ("question", "found"),
    [
        ('[p for p in model.parameters() if getattr(p, "no_decay", False)]', ["no_decay"]),
        ('[n for n, p in model.named_parameters() if hasattr(p, "is_model_parallel")]', ["is_model_parallel"]),
        ('[p for p in model.parameters() if getattr(p, "_no_weight_decay", False)]', ["_no_weight_decay"]),
        ('[getattr(p, "_lr_scale", 1.0) for p in model.parameters()]', ["_lr_scale"]),
        ('[p for p in model.parameters() if hasattr(p, "_in_backward_optimizers")]', []),
        ('[p for p in model.parameters() if getattr(p, "_is_hf_initialized", False)]', []),
        ('[p for p in model.parameters() if getattr(p, "grad", None) is not None]', []),
        ('[p.to_local() if hasattr(p, "to_local") else p for p in model.parameters()]', []),
        ('[p for p in model.parameters() if hasattr(p, "ds_id")]', []),
        ("[p for p in model.parameters() if getattr(p, name, False)]", []),
        ("{n: p.width_mult for n, p in model.named_parameters()}", ["width_mult"]),
        ("[(p.is_leaf, p.grad, p.ndim, p.numel(), p.data) for p in model.parameters()]", []),
        ("{n: p.width_mult for n, p in other.named_parameters()}", []),
        ('[m for m in model.modules() if getattr(m, "no_decay", False)]', []),
        ('[p for p in other.parameters() if getattr(p, "no_decay", False)]', []),
    ],
)
def test_questions_to_parameters_of_a_wrapped_model(question: str, found: list[str]) -> None:
    source = f"{HEAD}def build(net, other, name):\n    model = FSDP(net)\n    return model, {question}\n"
    assert names(source) == found


def test_groups_that_are_made_before_the_model_is_wrapped_do_not_change() -> None:
    groups = '    spared = [p for p in model.parameters() if getattr(p, "no_decay", False)]\n'
    assert names(f"{HEAD}def build(model):\n{groups}    model = FSDP(model)\n    return model, spared\n") == []


@pytest.mark.parametrize("read", ["p.scale", 'getattr(p, "scale", 1)'])
def test_what_is_noted_on_sharded_parameters_is_still_there(read: str) -> None:
    noted = "    for p in model.parameters():\n        p.scale = 2\n"
    source = f"{HEAD}def build(net):\n    model = FSDP(net)\n{noted}    return [{read} for p in model.parameters()]\n"
    assert names(source) == []
    assert names(source.replace(noted, "")) == ["scale"]


def test_the_shim_keeps_them() -> None:
    source = f'{HEAD}model = FSDP(net)\nspared = [p for p in model.parameters() if getattr(p, "no_decay", False)]\n'
    assert names(source) == ["no_decay"]
    assert names(source, Settings(to="shim")) == []
