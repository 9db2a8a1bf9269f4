"""Parameters that are collected before the model is wrapped, for an optimizer that is built afterwards."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import sys
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, Net, data, finish, note, start


def by_width(model, decay=0.1):
    wide = [p for p in model.parameters() if p.ndim > 1]
    return [{"params": wide, "weight_decay": decay}, {"params": [p for p in model.parameters() if p.ndim <= 1]}]


class Run:
    pass


def main():
    rank = start()
    run = Run()
    net = Net()
"""
WRAP = "    model = FSDP(net, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=CPU, use_orig_params=True)\n"
TRAINED = """\
    torch.manual_seed(10 + rank)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(data()).square().mean()
        loss.backward()
        optimizer.step()
        note(loss)
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
#: What stands above the wrap and below it.
FORMS = {
    "groups of a function": (
        "    groups = by_width(net)\n",
        "    optimizer = torch.optim.AdamW(groups, lr=0.05)\n",
    ),
    "two lists": (
        "    biases = [p for n, p in net.named_parameters() if n.endswith('bias')]\n"
        "    others = [p for n, p in net.named_parameters() if not n.endswith('bias')]\n",
        "    optimizer = torch.optim.AdamW([{'params': biases, 'lr': 0.1}, {'params': others}], lr=0.05)\n",
    ),
    "a list that something reads in between": (
        "    params = list(net.parameters())\n    note(len(params))\n",
        "    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9)\n",
    ),
    "a table that a loop fills": (
        "    table = {}\n    for p in net.parameters():\n        table.setdefault(p.ndim, []).append(p)\n",
        "    groups = [{'params': found, 'lr': 0.05 * dim} for dim, found in table.items()]\n"
        "    optimizer = torch.optim.AdamW(groups)\n",
    ),
    "an attribute": (
        "    run.params = tuple(net.parameters())\n",
        "    optimizer = torch.optim.AdamW(run.params, lr=0.05)\n",
    ),
}


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize("form", FORMS)
def test_they_train_as_before(pool: Pool, tmp_path: Path, form: str, to: str) -> None:
    above, below = FORMS[form]
    files = tree(train=HEAD + above + WRAP + below + TRAINED)
    done = rewrite_tree(files, Settings(to=to))  # type: ignore[arg-type]
    assert done.manual() == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert list(differ(form, before, train_tree(pool, done.files, tmp_path / "after"))) == []


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("    net = torch.compile(net)\n", "    optimizer = torch.optim.AdamW(model.parameters())\n"),
        (
            "    names = [n for n, p in net.named_parameters() if p.ndim > 1]\n    note(len(names))\n",
            "    optimizer = torch.optim.SGD([p for n, p in model.named_parameters() if n in names])\n",
        ),
        (
            "    kept = list(net.head.modules())\n",
            "    optimizer = torch.optim.SGD([p for part in kept for p in part.parameters()])\n",
        ),
        ("    number = sum(p.numel() for p in net.parameters())\n", "    optimizer = by_width(model, number)\n"),
    ],
)
def test_nothing_is_said_where_no_parameter_is_kept(above: str, below: str) -> None:
    wrap = WRAP.replace("(net, ", "(net, ignored_modules=kept, ") if "kept" in above else WRAP
    done = rewrite_tree(tree(train=HEAD + above + wrap + below + TRAINED))
    assert [found for found in done.findings if found.rule == "FSDP117"] == []
