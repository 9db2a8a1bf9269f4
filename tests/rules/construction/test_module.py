"""FSDP110: what is wrapped, a whole model or a part of one."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.construction.helpers import IMPORTS
from tests.rules.helpers import rewrite

WHOLE = "the model is sharded in place"
PART = "part of a larger model: sharded in place, inputs are not cast here"


def _said(source: str) -> tuple[str, list[str]]:
    """The output, and what is said about each wrapped module from the first line to the last."""
    result = rewrite(f"{IMPORTS}\n\n{textwrap.dedent(source).strip()}\n")
    assert isinstance(result, Changed), result
    return result.source.decode(), [found.message for found in result.findings if found.rule == "FSDP110"]


@pytest.mark.parametrize(
    "body",
    [
        "return FSDP(net)",
        "return FSDP(module=net)",
        "model = FSDP(net)\n    return model",
        "trainer.model = FSDP(net)",
        "models['first'] = FSDP(net)",
    ],
)
def test_a_whole_model(body: str) -> None:
    text, said = _said(f"def build(net, trainer, models):\n    {body}")
    assert said == [WHOLE] and "fully_shard(net)" in text


def test_an_attribute_of_self_is_a_whole_model() -> None:
    _, said = _said("class Trainer:\n    def __init__(self, net):\n        self.model = FSDP(net)")
    assert said == [WHOLE]


@pytest.mark.parametrize("target", ["net.head", "net.blocks[0]", "net.towers['left'][0]"])
def test_a_part_of_a_model_that_is_wrapped_below(target: str) -> None:
    _, said = _said(f"def build(net):\n    {target} = FSDP({target})\n    net = FSDP(net)\n    return net")
    assert said == [PART, WHOLE]


def test_a_part_of_a_model_that_nothing_wraps_is_a_model_of_its_own() -> None:
    _, said = _said("def build(net):\n    net.head = FSDP(net.head)\n    return net")
    assert said == [WHOLE]


def test_a_part_that_setattr_puts_back() -> None:
    source = """
        def build(net):
            for name, child in net.named_children():
                setattr(net, name, FSDP(child))
            return FSDP(net)
    """
    _, said = _said(source)
    assert said == [PART, WHOLE]


def test_a_part_that_a_module_makes_of_itself() -> None:
    _, said = _said("class Net(torch.nn.Module):\n    def __init__(self, head):\n        self.head = FSDP(head)")
    assert said == [PART]


def test_a_part_does_not_cast_its_inputs_and_the_whole_does() -> None:
    half = "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)"
    source = f"""
        def build(net):
            net.head = FSDP(net.head, {half})
            net = FSDP(net, {half})
            return net
    """
    part, whole = _said(source)[0].split("mp_policy=")[1:]
    assert "cast_forward_inputs=False" in part and "cast_forward_inputs" not in whole
