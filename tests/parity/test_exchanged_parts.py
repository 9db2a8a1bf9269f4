"""Parts that are put into a sharded model: trained before and after, equal or left to the reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.trees import TRAINED, Rewritten, rewrite_by_command, rewrite_tree, train_tree, tree
from tests.pool import Pool, WorkerError

HEAD = """\
import sys
import torch
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU, Net, data, finish, note, start
"""
MAIN = (
    """
def main():
    rank = start()
    torch.manual_seed(1)
    model = FSDP({net}, device_id=CPU, use_orig_params=True)
    {line}
"""
    # The kernels that step many tensors at once, as they do on a GPU by default, take tensors of one kind.
    + TRAINED.replace("lr=0.05", "lr=0.05, foreach=True")
)
OWN = """
import torch.nn as nn
from common import Net


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x):
        return self.inner(x)


def make():
    return Own()


class Scaled(Net):
    scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale
"""


def program(line: str, net: str = "Net()") -> dict[str, str]:
    return tree(train=f"{HEAD}from parts import Own, Scaled, make\n{MAIN.format(net=net, line=line)}", parts=OWN)


#: What trains the same, and says nothing that is left to do.
ALIKE = {
    "a loss": "model.criterion = nn.MSELoss()",
    "a part without parameters": "model.blocks[0].linear.extra = nn.Dropout(0.5)",
    "a number that no model reads": "model.epoch = 3",
}
#: What does something else under FSDP2, or fails: its rewrite has to say so.
OTHERWISE = {
    "a layer": ("model.head = nn.Linear(6, 3)", "Net()"),
    "a class of another file": ("model.head = Own()", "Net()"),
    "a factory of another file": ("setattr(model, 'head', make())", "Net()"),
    "a number that the model reads": ("model.scale = 3.0", "Scaled()"),
    "one that it is changed by": ("model.scale *= 3.0", "Scaled()"),
}


@pytest.mark.parametrize("line", ALIKE.values(), ids=ALIKE.keys())
def test_it_trains_the_same(pool: Pool, tmp_path: Path, line: str) -> None:
    files = program(line)
    done = rewrite_tree(files)
    assert done.manual() == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert list(differ("losses", before, train_tree(pool, done.files, tmp_path / "after"))) == []


@pytest.mark.parametrize(("line", "net"), OTHERWISE.values(), ids=OTHERWISE.keys())
def test_what_trains_otherwise_is_left_to_the_reader(pool: Pool, tmp_path: Path, line: str, net: str) -> None:
    files = program(line, net)
    done = rewrite_tree(files)
    assert ["FSDP229" in one for one in done.manual()] == [True]
    assert_differs(pool, tmp_path, files, done)


def assert_differs(pool: Pool, tmp_path: Path, files: dict[str, str], done: Rewritten) -> None:
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    try:
        after = train_tree(pool, done.files, tmp_path / "after")
    except WorkerError:
        return
    assert list(differ("losses", before, after)) != []


def test_a_new_block_is_left_to_the_reader() -> None:
    """It fails where kernels step many tensors at once, unless fsdp_compat, which sees to that, was ever imported."""
    done = rewrite_tree(program("model.blocks.append(nn.Linear(6, 6))"))
    assert ["FSDP229" in one for one in done.manual()] == [True]


UNITS = """
import torch.nn as nn
from common import Net


class Head(nn.Linear):
    factor = 1.0

    def __init__(self):
        super().__init__(3, 3)
        self.scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale * self.factor


class Headed(Net):
    def __init__(self):
        super().__init__()
        self.ends = nn.ModuleList([Head()])
        self.end = Head()

    @property
    def scale(self):
        return self.end.scale

    @scale.setter
    def scale(self, value):
        self.end.scale = value

    def set_scales(self, value):
        for one in self.ends:
            one.scale = value

    def forward(self, x):
        return self.end(self.ends[0](super().forward(x)))
"""
BY_CLASS = "ModuleWrapPolicy({Head})"
#: What a unit is given, and the policy.
UNIT_OTHERWISE = {
    "through a property": ("model.module.scale = 3.0", BY_CLASS),
    "to a property of the wrapper": ("model.scale = 3.0", BY_CLASS),
    "by an attribute": ("model.end.scale = 3.0", BY_CLASS),
    "by an attribute of the class": ("model.module.end.factor = 3.0", BY_CLASS),
    "by a method": ("model.module.set_scales(3.0)", BY_CLASS),
    "by a loop": ("for one in model.ends:\n        one.scale = 3.0", BY_CLASS),
    "by its place": ("model.ends[0].scale *= 3.0", BY_CLASS),
    "by setattr": ("setattr(model.end, 'scale', 3.0)", BY_CLASS),
    "by a partial": ("model.end.scale = 3.0", "partial(transformer_auto_wrap_policy, transformer_layer_cls={Head})"),
}
#: What reaches the module inside under FSDP1, too.
UNIT_ALIKE = {
    "a part that is no unit": ("model.end.scale = 3.0", "ModuleWrapPolicy({Block})"),
    "no unit at all": ("model.module.scale = 3.0", "None"),
    "a loop over all modules": (
        "for one in model.modules():\n        if isinstance(one, Head):\n            one.scale = 3.0",
        BY_CLASS,
    ),
    "the module inside": ("model.module.end.module.scale = 3.0", BY_CLASS),
    "what nothing reads": ("model.module.end.epoch = 3", BY_CLASS),
}


def unit_program(line: str, policy: str) -> dict[str, str]:
    wrapped = MAIN.format(net="Headed()", line=line).replace("device_id", f"auto_wrap_policy={policy}, device_id")
    imports = (
        "from functools import partial\nfrom common import Block\n"
        "from torch.distributed.fsdp.wrap import ModuleWrapPolicy, transformer_auto_wrap_policy\n"
        "from parts import Head, Headed\n"
    )
    return tree(train=f"{HEAD}{imports}{wrapped}", parts=UNITS)


@pytest.mark.parametrize("kind", ["native", "shim"])
@pytest.mark.parametrize(("line", "policy"), UNIT_OTHERWISE.values(), ids=UNIT_OTHERWISE.keys())
def test_what_fsdp1_gives_the_wrapper_of_a_unit_is_told(
    pool: Pool, tmp_path: Path, line: str, policy: str, kind: str
) -> None:
    files = unit_program(line, policy)
    done = rewrite_by_command(files, Settings(to=kind))
    assert done.manual() and all("FSDP229" in one for one in done.manual())
    assert_differs(pool, tmp_path, files, done)


@pytest.mark.parametrize(("line", "policy"), UNIT_ALIKE.values(), ids=UNIT_ALIKE.keys())
def test_what_reaches_the_module_inside_trains_the_same(pool: Pool, tmp_path: Path, line: str, policy: str) -> None:
    files = unit_program(line, policy)
    done = rewrite_by_command(files)
    assert done.manual() == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert list(differ("losses", before, train_tree(pool, done.files, tmp_path / "after"))) == []


MAKERS = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from common import CPU
from parts import Scaled


class Maker:
    def __init__(self):
        self.model = FSDP(Scaled(), device_id=CPU, use_orig_params=True)


KINDS = {"scaled": Maker, "other": Maker}
"""


@pytest.mark.parametrize("made", ["KINDS['scaled']()", "KINDS.get('scaled')()", "Maker()"])
def test_a_number_in_the_model_of_an_object_from_a_table(pool: Pool, tmp_path: Path, made: str) -> None:
    line = f"maker = {made}\n    maker.model.scale = 3.0\n    model = maker.model"
    main = MAIN.replace("    model = FSDP({net}, device_id=CPU, use_orig_params=True)\n", "").format(line=line)
    files = tree(train=f"{HEAD}from makers import KINDS, Maker\n{main}", makers=MAKERS, parts=OWN)
    done = rewrite_tree(files)
    assert ["FSDP229" in one for one in done.manual()] == [True]
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True)
    assert list(differ("losses", before, train_tree(pool, done.files, tmp_path / "after"))) != []
