"""Random values for parameters that are sharded already, and those that are not."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings, rewrite_tree

HEAD = "import torch.nn as nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
DRAWN = {
    "a method": "model.reset_parameters()",
    "a method of a part": "model.head.reset_parameters()",
    "all modules": "for m in model.modules():\n        m.reset_parameters()",
    "torch.nn.init": "for p in model.parameters():\n        nn.init.xavier_uniform_(p)",
    "a method of the data": "for n, p in model.named_parameters():\n        p.data.normal_()",
    "one parameter": "nn.init.normal_(model.head.weight)",
}


@pytest.mark.parametrize("settings", [Settings(), Settings(to="shim")], ids=["native", "shim"])
@pytest.mark.parametrize("line", DRAWN.values(), ids=DRAWN.keys())
def test_it_is_left_to_the_reader_below_the_wrap(line: str, settings: Settings) -> None:
    below = f"{HEAD}def build(net):\n    model = FSDP(net)\n    {line}\n    return model\n"
    above = f"{HEAD}def build(model):\n    {line}\n    model = FSDP(model)\n    return model\n"
    assert [found.level.value for found in findings(below, settings) if found.rule == "FSDP226"] == ["manual"]
    assert [found for found in findings(above, settings) if found.rule == "FSDP226"] == []


def test_the_model_inside_is_the_same_object() -> None:
    source = f"{HEAD}def build(net):\n    model = FSDP(net)\n    net.reset_parameters()\n    return model\n"
    assert [found.level.value for found in findings(source) if found.rule == "FSDP226"] == ["manual"]


def test_it_reaches_a_function_of_another_file() -> None:
    other = "def start(net):\n    net.reset_parameters()\n"
    source = (
        f"{HEAD}from other import start\ndef build(net):\n    model = FSDP(net)\n    start(model)\n    return model\n"
    )
    results = rewrite_tree({"example.py": source.encode(), "other.py": other.encode()})
    assert [found.rule for found in results["other.py"].findings] == ["FSDP226"]


@pytest.mark.parametrize("line", ["nn.init.zeros_(model.head.weight)", "model.head.weight.data.fill_(1.0)"])
def test_values_that_are_not_random_are_none_of_its_business(line: str) -> None:
    source = f"{HEAD}def build(net):\n    model = FSDP(net)\n    {line}\n    return model\n"
    assert [found for found in findings(source) if found.rule == "FSDP226"] == []
