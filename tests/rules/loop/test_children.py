"""FSDP231: children of a wrapped model, which are its own under FSDP2."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
MAIN = f"{HEAD}from example import use\n\nmodel = FSDP(net)\nuse(model)\n"


def said(source: str, settings: Settings | None = None, **others: str) -> list[tuple[int, str]]:
    return [(found.line, found.level) for found in findings(source, settings, **others) if found.rule == "FSDP231"]


@pytest.mark.parametrize(
    "body",
    [
        "    return list(model.children())[0]\n",
        "    return [name for name, child in model.named_children()]\n",
        "    return next(model.children())\n",
        "    return model._modules\n",
        "    return [name for name, parameter in model._parameters.items()]\n",
        "    return model._buffers\n",
    ],
)
@pytest.mark.parametrize("to", ["native", "shim"])
def test_one_child_and_many_are_told_apart(body: str, to: str) -> None:
    settings = Settings(to=to)
    assert said(f"def use(model):\n{body}", settings, main=MAIN) == [(2, "manual")]
    assert said(f"{HEAD}def use(net):\n    model = FSDP(net)\n{body}", settings) == [(4, "manual")]
    assert said(f"def use(model):\n{body}", settings) == []
    assert said(f"{HEAD}def use(model):\n{body}    return FSDP(model)\n", settings) == []


@pytest.mark.parametrize(
    "source",
    [
        "def use(model):\n    return list(model.module.children())\n",
        "def use(model):\n    inner = model.module\n    return [name for name, child in inner.named_children()]\n",
        "def use(model):\n    for child in model.children():\n        use(child)\n",
        "class A:\n    def use(self, model):\n        for child in model.children():\n            self.use(child)\n",
        "def use(model):\n    return model.head.children()\n",
    ],
)
def test_what_means_the_same_is_left_alone(source: str) -> None:
    assert said(source, main=MAIN) == []


HOLDER = """
class Holder:
    def __init__(self, net):
        self.all = {"main": FSDP(net)}

    def __getitem__(self, key):
        return self.all[key]

    def __iter__(self):
        return iter(self.all.values())
"""


@pytest.mark.parametrize(
    "body",
    [
        "    return list(holder['main'].children())\n",
        "    return [list(model.children()) for model in holder]\n",
    ],
)
def test_an_object_that_gives_a_model_by_its_index_is_followed(body: str) -> None:
    made = f"{HEAD}{HOLDER}"
    main = "from made import Holder\nfrom example import use\n\nuse(Holder(net))\n"
    assert said(f"def use(holder):\n{body}", made=made, main=main) == [(2, "manual")]
    renamed = main.replace("use(Holder(net))", "box = Holder(net)\nuse(box)")
    assert said(f"def use(holder):\n{body}", made=made, main=renamed) == [(2, "manual")]
