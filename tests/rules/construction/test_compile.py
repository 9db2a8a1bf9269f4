"""FSDP120: torch.compile around a wrapped model."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import check_noop, findings, rewrite_tree

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(source) if found.rule == "FSDP120"]


def test_a_model_that_is_never_wrapped() -> None:
    check_noop("import torch\n\nmodel = torch.compile(model)\n")


def test_the_wrapped_model() -> None:
    source = """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        model = FSDP(model)
        model = torch.compile(model)
        """
    assert levels(source) == ["review"]
    assert any("no longer have the prefix _orig_mod" in found.message for found in findings(source))


#: Compiled first, then sharded: all of it, or parts.
EARLY = {
    "in the call": "def build(net):\n    return FSDP(torch.compile(net))\n",
    "above the call": "def build(net):\n    net = torch.compile(net)\n    return FSDP(net)\n",
    "under another name": "def build(net):\n    fast = torch.compile(net, mode='default')\n    return FSDP(fast)\n",
    "by a keyword": "def build(net):\n    return FSDP(module=torch.compile(net))\n",
    "in a function": "def fast(net):\n    return torch.compile(net)\n\ndef build(net):\n    return FSDP(fast(net))\n",
    "made in a function": "def fast():\n    return torch.compile(Net())\n\ndef build():\n    return FSDP(fast())\n",
    "given to a function": (
        "def wrap(net):\n    return FSDP(net)\n\ndef build(net):\n    return wrap(torch.compile(net))\n"
    ),
    "a block by its number": (
        "def build(net):\n    for i, block in enumerate(net.blocks):\n        net.blocks[i] = torch.compile(block)\n"
        "    return FSDP(net)\n"
    ),
    "a block by its name": (
        "def build(net):\n    for name, child in net.named_children():\n"
        "        setattr(net, name, torch.compile(child))\n    return FSDP(net)\n"
    ),
    "a part": "def build(net):\n    net.head = torch.compile(net.head)\n    return FSDP(net)\n",
    "an attribute": (
        "class Job:\n    def __init__(self, net):\n        self.net = torch.compile(net)\n\n"
        "    def start(self):\n        self.net = FSDP(self.net)\n"
    ),
}
#: Compiled, and never sharded.
APART = {
    "another model": "def build(net, teacher):\n    teacher = torch.compile(teacher)\n    return FSDP(net), teacher\n",
    "a function": "def build(net):\n    loss = torch.compile(lambda x: x.sum())\n    return FSDP(net), loss\n",
    "in place": "def build(net):\n    net.compile()\n    return FSDP(net)\n",
    "a part of another model": (
        "def build(net, other):\n    other.head = torch.compile(other.head)\n    return FSDP(net)\n"
    ),
}


@pytest.mark.parametrize("source", EARLY.values(), ids=EARLY.keys())
def test_what_is_compiled_before_it_is_sharded(source: str) -> None:
    said = [found for found in findings(f"import torch\n{WRAP}\n{source}") if found.rule == "FSDP120"]
    assert [found.level for found in said] == [Level.REVIEW]
    assert "no longer have the prefix _orig_mod" in said[0].message


@pytest.mark.parametrize("source", APART.values(), ids=APART.keys())
def test_what_is_compiled_and_not_sharded(source: str) -> None:
    assert levels(f"import torch\n{WRAP}\n{source}") == []


def test_a_model_that_a_list_gives_may_be_sharded() -> None:
    main = f"{WRAP}from running import run\n\ndef main(nets):\n    run([FSDP(nets[0]), nets[1]])\n"
    running = "import torch\n\ndef run(nets):\n    return [torch.compile(net) for net in nets]\n"
    result = rewrite_tree({"main.py": main.encode(), "running.py": running.encode()}).get("running.py")
    assert isinstance(result, Changed | Unchanged)
    (found,) = result.findings
    assert (found.rule, found.level) == ("FSDP120", Level.REVIEW)
    assert found.message.startswith("if this model is sharded: ")
