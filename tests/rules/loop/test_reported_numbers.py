"""Numbers of gradients and parameters that a program only logs, returns, stores or prints: other ones under FSDP2.

``tests/parity/test_reported_numbers.py`` holds what they are on two ranks.
"""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

RULES = {"FSDP214", "FSDP217", "FSDP222", "FSDP227"}
MAIN = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from example import look

class Run:
    def __init__(self, net):
        self.brain = FSDP(net, use_orig_params=True)

    def step(self, x):
        self.brain(x).sum().backward()
        look({given})
"""
#: What a function of another file does, and what it says about it.
USES = {
    "for w in brain.parameters():\n        print(w.grad.norm().item())": "review",
    "return {n: w.grad.abs().max().item() for n, w in brain.named_parameters() if w.grad is not None}": "review",
    "for n, w in brain.named_parameters():\n        SEEN[n] = w.grad.std().item()": "review",
    "for w in brain.parameters():\n        print('%.3f' % w.grad.norm())": "review",
    "kept = [w.grad for w in brain.parameters()]\n    return [float(g.norm()) for g in kept]": "review",
    "return sum(w.grad.numel() for w in brain.parameters())": "review",
    "return sum(w.numel() for w in brain.parameters())": "review",
    "for n, w in brain.named_parameters():\n        log.info('%s %.3f', n, w.norm())": "review",
    "return [w.detach().mean().item() for w in brain.parameters()]": "review",
    "print([float(w.norm()) for w in brain.parameters()])": "review",
    # These raise: a DTensor has no format, and no NumPy array.
    "for n, w in brain.named_parameters():\n        print(f'{n} {w.grad.norm():.3f}')": "manual",
    "for w in brain.parameters():\n        norm = w.grad.norm()\n        print(f'{norm:.3f}')": "manual",
    "norms = [w.grad.norm() for w in brain.parameters()]\n    print(f'{sum(norms):.3f}')": "manual",
    "norms = [w.grad.norm() for w in brain.parameters()]\n    return [f'{n:.3f}' for n in norms]": "manual",
    "for w in brain.parameters():\n        print('{:.3f}'.format(w.grad.norm()))": "manual",
    "return [format(w.grad.mean(), '.3f') for w in brain.parameters()]": "manual",
    "for n, w in brain.named_parameters():\n        SEEN[n] = w.grad.std().item()\n"
    "        print(f'{w.grad.norm():.3f}')": "manual",
    "for n, w in brain.named_parameters():\n        WRITER.add_histogram(n, w.grad, 0)": "manual",
    "for w in brain.parameters():\n        print(f'{w.norm():.3f}')": "manual",
    "for w in brain.parameters():\n        log.info('{:.3f}'.format(w.norm()))": "manual",
    "return [w.norm().tolist() for w in brain.parameters()]": "manual",
    "for n, w in brain.named_parameters():\n        WRITER.add_histogram(n, w, 0)": "manual",
    "return [wandb.Histogram(w.detach().cpu()) for w in brain.parameters()]": "manual",
    "return [numpy.histogram(w.detach()) for w in brain.parameters()]": "manual",
    # No number of them is read.
    "return [w.grad is None for w in brain.parameters()]": None,
    "for w in brain.parameters():\n        w.grad.mul_(0.5)": None,
    "for w in brain.parameters():\n        w.grad = w.grad.float()": None,
    "return [w.grad.dtype for w in brain.parameters()]": None,
    "for n, w in brain.named_parameters():\n        print(f'{n:>20} {w.requires_grad!s:>5}')": None,
    "return [w.to_local().norm().item() for w in brain.parameters()]": None,
}
HEAD = "import logging\nimport numpy\nimport wandb\nlog = logging.getLogger()\nSEEN = {}\n\n"


def levels(use: str, given: str, to: str) -> set[str]:
    found = findings(f"{HEAD}def look(brain):\n    {use}\n", Settings(to=to), main=MAIN.format(given=given))
    return {each.level.value for each in found if each.rule in RULES}


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(("use", "level"), USES.items())
def test_it_is_never_passed_over(use: str, level: str | None, to: str) -> None:
    found = levels(use, "self.brain", to)
    assert (max(found, key=("info", "review", "manual").index) if found else None) == level
    assert "info" not in found


@pytest.mark.parametrize("use", USES)
def test_a_model_that_is_not_sharded(use: str) -> None:
    assert levels(use, "net", "native") == set()
