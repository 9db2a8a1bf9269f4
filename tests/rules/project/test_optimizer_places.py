"""The parameters that an optimizer holds are followed wherever the optimizer is kept."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

HEAD = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
MADE = "torch.optim.AdamW(net.parameters())"
USE = "for group in {held}.param_groups:\n    for weight in group['params']:\n        print(weight.grad.norm())\n"
KEPT = "class Loop:\n    def __init__(self, net, optimizer):\n        self.optimizer = optimizer\n\n    def go(self):\n"
JOB = "from dataclasses import dataclass\n\n@dataclass\nclass Job:\n    net: object\n    opt: object\n"


def program(call: str, held: str, imports: str = "from steps import go\n", **files: str) -> dict[str, str]:
    main = f"{HEAD}{imports}\ndef main(net):\n    net = FSDP(net)\n" + textwrap.indent(call, "    ")
    method = textwrap.indent(USE.format(held=held), " " * 8)
    function = f"def go(given):\n{textwrap.indent(USE.format(held=held), '    ')}"
    steps = KEPT + method if held.startswith("self.") else function
    return {"main.py": main, "steps.py": steps, **{f"{name}.py": text for name, text in files.items()}}


PLACES = {
    "a name": program(f"optimizer = {MADE}\ngo(optimizer)\n", "given"),
    "the call itself": program(f"go({MADE})\n", "given"),
    "a list": program(f"go([{MADE}])\n", "given[0]"),
    "a dictionary": program(f"go({{'opt': {MADE}}})\n", "given['opt']"),
    "an attribute": program(f"o = {MADE}\nLoop(net, o).go()\n", "self.optimizer", "from steps import Loop\n"),
    "an attribute of a call": program(f"Loop(net, {MADE}).go()\n", "self.optimizer", "from steps import Loop\n"),
    "a dataclass": program(
        f"o = {MADE}\njob = Job(net, o)\ngo(job)\n", "given.opt", "from job import Job\nfrom steps import go\n", job=JOB
    ),
    "a dataclass of a call": program(
        f"go(Job(net, opt={MADE}))\n", "given.opt", "from job import Job\nfrom steps import go\n", job=JOB
    ),
    "a factory": program(
        "go(made(net))\n",
        "given",
        "from making import made\nfrom steps import go\n",
        making=f"import torch\n\ndef made(net):\n    return {MADE}\n",
    ),
}


@pytest.mark.parametrize("files", PLACES.values(), ids=PLACES.keys())
def test_gradients_of_what_an_optimizer_holds_are_followed(files: dict[str, str]) -> None:
    result = rewrite_tree({path: text.encode() for path, text in files.items()}).get("steps.py", Unchanged())
    assert isinstance(result, Changed | Unchanged), result
    assert "FSDP222" in {found.rule for found in result.findings}


@pytest.mark.parametrize("files", PLACES.values(), ids=PLACES.keys())
def test_those_of_another_model_are_not(files: dict[str, str]) -> None:
    other = {path: text.replace("net = FSDP(net)", "other = FSDP(net.other)") for path, text in files.items()}
    result = rewrite_tree({path: text.encode() for path, text in other.items()}).get("steps.py", Unchanged())
    assert isinstance(result, Changed | Unchanged), result
    assert "FSDP222" not in {found.rule for found in result.findings}
