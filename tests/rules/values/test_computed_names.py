"""Classes and functions of a module that only the program knows by name: any of the module may be the one."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

PICKED = """import sys
from collections import defaultdict
import torch
import torch.distributed as dist


LIMIT = 0.5


class Ascent:
    def __init__(self, optimizer, model, rho=LIMIT):
        self.optimizer, self.model, self.rho = optimizer, model, rho
        self.state = defaultdict(dict)

    def norm(self, gradients):
        total = sum((one.detach() ** 2).sum() for one in gradients)
        dist.all_reduce(total)
        return total.sqrt()

    @torch.no_grad()
    def ascend(self):
        gradients = []
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                gradients.append(parameter.grad)
        return self.norm(gradients)


def ascent(optimizer, model, rho):
    return Ascent(optimizer, model, rho)
"""
LINE = PICKED[: PICKED.index("        total = sum(")].count("\n") + 1
MAIN = """import importlib
import sys
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{imports}

def train(args, net, batch):
    model = FSDP(net, use_orig_params=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    minimizer = {picked}(optimizer, model, rho=0.1)
    model(batch).sum().backward()
    minimizer.ascend()
    optimizer.step()
"""
WAYS = [
    ("import example", "getattr(example, args.minimizer)"),
    ("import example", "getattr(example, args.minimizer, None)"),
    ("import example", 'getattr(example, f"{args.minimizer}")'),
    ("import example", "vars(example)[args.minimizer]"),
    ("import example", "example.__dict__[args.minimizer]"),
    ("import example", "example.__dict__.get(args.minimizer)"),
    ("import example", "dict(vars(example))[args.minimizer]"),
    ("import example", 'getattr(importlib.import_module("example"), args.minimizer)'),
    ("import example", 'getattr(sys.modules["example"], args.minimizer)'),
    ("from example import *", "globals()[args.minimizer]"),
    ("from example import Ascent, ascent", "globals()[args.minimizer]"),
    ("from example import Ascent", "globals().get(args.minimizer)"),
    ("from example import Ascent", "getattr(sys.modules[__name__], args.minimizer)"),
]


def said(source: str, rule: str = "FSDP222", **others: str) -> list[tuple[int, str]]:
    return [(found.line, found.level.value) for found in findings(source, **others) if found.rule == rule]


@pytest.mark.parametrize(("imports", "picked"), WAYS, ids=[" ".join(way) for way in WAYS])
def test_any_class_of_the_module_may_be_the_one(imports: str, picked: str) -> None:
    assert said(PICKED, main=MAIN.format(imports=imports, picked=picked)) == [(LINE, "manual")]


def test_names_that_are_written_out_are_the_only_ones() -> None:
    main = MAIN.format(imports="import example", picked='getattr(example, "other")')
    assert said(PICKED + "\n\ndef other(*args, **kwargs):\n    return None\n", main=main) == []


def test_what_the_module_imports_is_none_of_them() -> None:
    """A class that takes no model is none either."""
    main = MAIN.format(imports="import example", picked="getattr(example, args.minimizer)")
    other = "from helpers import Ascent as other\n\n\ndef build(net):\n    return net\n"
    assert said(other, main=main, helpers="class Ascent:\n    pass\n") == []
