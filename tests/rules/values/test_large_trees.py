"""What is read of a tree that is too large to be read whole: first what an answer needs."""

from __future__ import annotations

import pytest

from fsdp_rules.project.flow import Certainty
from fsdp_rules.values import interpreter, modules
from fsdp_rules.values.by_position import facts_of
from fsdp_rules.values.interpreter import Interpreter

FILES = {
    "train.py": b"""\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from passing import Passing, unread
from beside import TABLE


def train(net):
    model = FSDP(net)
    model = Passing(model).given()
    return model.module
""",
    "passing.py": b"""\
from giving import Giving
from beside import other


class Passing(Giving):
    def __init__(self, model):
        self.kept = model
""",
    "giving.py": b"class Giving:\n    def given(self):\n        return self.kept\n",
    "beside.py": b"TABLE = {}\n\n\ndef other(model):\n    return model.parameters()\n",
}
#: `model` in the last line of train.py.
PLACE = (9, 11, 9, 16)


def interpreted() -> Interpreter:
    machine = Interpreter(FILES)
    machine.run(["train.py"], ["train.py"])
    return machine


def test_what_is_called_is_read_however_large_the_tree_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modules, "MOST", 0)
    assert set(interpreted().modules.frames) == {"train.py", "passing.py", "giving.py"}
    assert facts_of(FILES, ["train.py"], ["train.py"]).at("train.py", PLACE).model is Certainty.YES


def test_what_is_imported_is_read_where_there_is_room() -> None:
    assert set(interpreted().modules.frames) == set(FILES)


def test_functions_that_nothing_calls_are_run_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    first = b"def first(a):\n    return second(a)\n\n\ndef second(a):\n    return a\n\n\ndef third(a):\n    return a\n"
    machine = Interpreter({"a.py": first})
    monkeypatch.setattr(interpreter, "MOST_FRAMES", 2)
    machine.run(["a.py"], ["a.py"])
    assert {frame.body.name for frame in machine.frames} == {"", "first", "second"}
