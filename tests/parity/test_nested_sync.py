"""Wraps inside of wraps, each with sync_module_states and values of the rank's own: trained before and after."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.trees import TRAINED, rewrite_tree, train_tree, tree
from tests.pool import Pool

HEAD = """\
import sys
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU, Block, Net, data, finish, note, start
"""
MAIN = (
    """
def main():
    rank = start()
    torch.manual_seed(rank)
    model = Net()
{setup}
"""
    + TRAINED
)
OPTIONS = "sync_module_states=True, device_id=CPU, use_orig_params=True"
PREPARE = f"""
from torch.distributed.fsdp import FullyShardedDataParallel as Sharded
from common import CPU

def prepare(part):
    return Sharded(part, {OPTIONS})
"""


def train(setup: str, above: str = "") -> str:
    body = textwrap.indent(textwrap.dedent(setup).strip("\n"), "    ")
    return HEAD + textwrap.dedent(above) + MAIN.format(setup=body)


FORMS = {
    "parts, then the root": tree(
        train=train(f"""
        for index, block in enumerate(model.blocks):
            model.blocks[index] = FSDP(block, {OPTIONS})
        model = FSDP(model, {OPTIONS})
        """)
    ),
    "a function that is called for a part and the root": tree(
        train=train(
            "model.embed = wrap(model.embed)\nmodel = wrap(model)",
            f"""
            def wrap(part):
                return FSDP(part, {OPTIONS})
            """,
        )
    ),
    "a function of another file": tree(
        prepare=PREPARE,
        train=train("model.head = prepare(model.head)\nmodel = prepare(model)", "from prepare import prepare\n"),
    ),
    "through a third file": tree(
        prepare=PREPARE,
        inner="""
        import prepare as sharding

        def inner(net):
            for name in ("embed", "head"):
                setattr(net, name, sharding.prepare(getattr(net, name)))
            return net
        """,
        train=train("model = prepare(inner(model))", "from inner import inner\nfrom prepare import prepare\n"),
    ),
    "a function that calls itself": tree(
        train=train(
            "model = wrap(model)",
            f"""
            def wrap(part):
                for name, child in part.named_children():
                    if not isinstance(child, (nn.LayerNorm, nn.ModuleList)):
                        setattr(part, name, wrap(child))
                return FSDP(part, {OPTIONS})
            """,
        )
    ),
    "a method": tree(
        train=train(
            "trainer = Trainer()\nmodel.head = trainer.wrap(model.head)\nmodel = trainer.wrap(model)",
            f"""
            class Trainer:
                def wrap(self, part):
                    return FSDP(part, {OPTIONS})
            """,
        )
    ),
    "a loop over names that ends at the root": tree(
        train=train(f"""
        parts = [model.embed, model.head, model]
        for part in parts:
            wrapped = FSDP(part, {OPTIONS})
            if part is model.embed:
                model.embed = wrapped
            elif part is model.head:
                model.head = wrapped
        model = wrapped
        """)
    ),
    "blocks of a list comprehension": tree(
        train=train(f"""
        model.blocks = nn.ModuleList([FSDP(block, {OPTIONS}) for block in model.blocks])
        model = FSDP(model, {OPTIONS})
        """)
    ),
    "a wrapper that a dictionary holds": tree(
        prepare=PREPARE,
        train=train(
            'model.embed = WAYS["full"](model.embed)\nmodel = WAYS["full"](model)',
            'from prepare import prepare\nWAYS = {"full": prepare}\n',
        ),
    ),
    "a class that wraps its attribute": tree(
        train=train(
            "model.head = Holder(model.head).ready()\nmodel = Holder(model).ready()",
            f"""
            class Holder:
                def __init__(self, net):
                    self.net = net

                def ready(self):
                    self.net = FSDP(self.net, {OPTIONS})
                    return self.net
            """,
        )
    ),
}


@pytest.mark.parametrize("files", FORMS.values(), ids=FORMS.keys())
def test_parts_that_are_sharded_already_are_sent_once(pool: Pool, tmp_path: Path, files: dict[str, str]) -> None:
    done = rewrite_tree(files)
    assert not done.manual()
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    after = train_tree(pool, done.files, tmp_path / "after")
    assert list(differ("losses", before, after)) == []
    assert before[0][0] != before[1][0], "the ranks have data of their own"
