"""Parts of a sharded model, however they are taken out of it: what is done with them is never passed over."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import findings, rewrite_tree

HEAD = "import torch\nimport torch.nn as nn\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
#: How the code before ``{use}`` gets at a part of ``brain``, which ``{use}`` calls ``part``.
WAYS = {
    "attribute": "part = brain.head\n{use}",
    "getattr": 'part = getattr(brain, "head")\n{use}',
    "vars": 'part = vars(brain)["head"]\n{use}',
    "walrus": "if (part := brain.head) is not None:\n    {use}",
    "tuple": "stem, part = brain.stem, brain.head\n{use}",
    "submodule": 'part = brain.get_submodule("head")\n{use}',
    "element": "part = brain.blocks[-1]\n{use}",
    "loop": "for part in brain.blocks:\n    {use}",
    "slice": "for part in brain.blocks[:2]:\n    {use}",
    "named list": "blocks = brain.blocks\nfor part in blocks:\n    {use}",
    "enumerate": "for at, part in enumerate(brain.blocks):\n    {use}",
    "zip": "for part, rate in zip(brain.blocks, rates):\n    {use}",
    "reversed": "for part in reversed(list(brain.blocks)):\n    {use}",
    "modules": "for part in brain.modules():\n    {use}",
    "named modules": "for name, part in brain.named_modules():\n    {use}",
    "dictionary": "for name, part in brain.towers.items():\n    {use}",
    "two deep": "for stage in brain.stages:\n    for part in stage.blocks:\n        {use}",
    "comprehension": "linears = [one for one in brain.modules()]\nfor part in brain.children():\n    {use}",
}
#: Lines of one function.
LENGTH = 8
#: What is done with it, and the rule about that.
USES = {
    "print(part.weight.norm().item())": "FSDP227",
    "print(part.weight.grad.norm().item())": "FSDP222",
    "nn.init.normal_(part.weight)": "FSDP226",
    "part.weight.data.copy_(torch.zeros(3))": "FSDP217",
    "nn.utils.clip_grad_norm_(part.parameters(), 1.0)": "FSDP215",
    "part.requires_grad_(False)": "FSDP218",
    "part.zero_grad()": "FSDP220",
    "part.weight.grad = None": "FSDP220",
    "print(part.module.width)": "FSDP206",
    "torch.save(part.state_dict(), 'part.pt')": "FSDP309",
}


def program(way: str, wrapped: str = "FSDP(net)") -> dict[str, bytes]:
    """A wrapped model that each function of a second file takes a part of, after a forward without a backward.

    Each is :data:`LENGTH` lines long, and they are in the order of :data:`USES`.
    """
    steps = ["import torch", "import torch.nn as nn"]
    for number, use in enumerate(USES):
        lines = ["with torch.no_grad():", "    brain(rates)", *WAYS[way].format(use=use).splitlines()]
        body = [f"def tidy{number}(brain, rates):", *(f"    {line}" for line in lines)]
        steps += [*body, *[""] * (LENGTH - len(body))]
    main = (
        f"{HEAD}from steps import *\n\ndef main(net, other, rates):\n    other = FSDP(other)\n    brain = {wrapped}\n"
    )
    main += "".join(f"    tidy{number}(brain, rates)\n" for number in range(len(USES)))
    files = {"main.py": main, "steps.py": "\n".join(steps) + "\n"}
    for path, text in files.items():
        compile(text, path, "exec", dont_inherit=True)
    return {path: text.encode() for path, text in files.items()}


def spoken(files: dict[str, bytes]) -> set[tuple[str, str]]:
    """Which rule speaks about which use."""
    result = rewrite_tree(files).get("steps.py", Unchanged())
    assert isinstance(result, Changed | Unchanged), result
    return {([*USES][(found.line - 3) // LENGTH], found.rule) for found in result.findings}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_done_with_a_part_has_a_finding(way: str) -> None:
    assert set(USES.items()) - spoken(program(way)) == set()


@pytest.mark.parametrize("way", WAYS)
def test_a_part_of_another_model_is_none(way: str) -> None:
    assert spoken(program(way, "net")) == set()


def test_what_comes_from_no_model_is_no_part() -> None:
    loop = "for step, batch in enumerate(loader.batches):\n        print(brain(batch).weight.norm().item())"
    found = findings(f"{HEAD}def f(net, loader):\n    brain = FSDP(net)\n    {loop}\n")
    assert "FSDP227" not in {one.rule for one in found}


def test_a_list_of_sharded_models_is_none_itself() -> None:
    """An element is the model, so that nothing is asked of the list."""
    use = "for one in self.models:\n            one.head.requires_grad_(False)"
    source = f"{HEAD}class T:\n    def __init__(self, nets):\n        self.models = [FSDP(net) for net in nets]\n"
    result = rewrite_tree({"t.py": f"{source}    def freeze(self):\n        {use}\n".encode()})["t.py"]
    assert isinstance(result, Changed)
    assert b"self.models.modules()" not in result.source
    assert "FSDP218" in {found.rule for found in result.findings}


def test_names_that_lead_back_to_themselves_end() -> None:
    findings(f"{HEAD}def f(net):\n    brain = FSDP(net)\n    print(part.weight.norm())\n\npart = part.inner\n")


@pytest.mark.parametrize(
    "hold",
    [
        "tidy([FSDP(net)])|for one in group:\n        torch.save(one.head.state_dict(), 'head.pt')",
        "tidy(Job(FSDP(net)))|torch.save(group.net.head.state_dict(), 'head.pt')",
        "tidy(Job(FSDP(net)))|group.net.head.load_state_dict(torch.load('head.pt'))",
    ],
)
def test_the_state_of_what_may_be_a_part_is_left_to_a_human(hold: str) -> None:
    call, _, use = hold.partition("|")
    plain = call.replace("FSDP(net)", "other")
    files = {
        "main.py": f"{HEAD}from job import Job\nfrom steps import tidy\n\n"
        f"def main(net, other):\n    {plain}\n    {call}\n",
        "job.py": "from dataclasses import dataclass\n\n@dataclass\nclass Job:\n    net: object\n",
        "steps.py": f"import torch\n\ndef tidy(group):\n    {use}\n",
    }
    result = rewrite_tree({path: text.encode() for path, text in files.items()})["steps.py"]
    assert isinstance(result, Changed | Unchanged)
    assert ("FSDP309", Level.MANUAL) in {(found.rule, found.level) for found in result.findings}
