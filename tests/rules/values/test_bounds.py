"""Trees of which the interpretation reads a part: what the rest may give is unknown, and the facts say so."""

from __future__ import annotations

import pytest

from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.value_facts import UNKNOWN, ValueFacts
from fsdp_rules.values.abstract import Obj
from fsdp_rules.values.by_position import facts_of
from fsdp_rules.values.frames import Class, Definition, Frame

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n"
#: What a function imports is only given back, or handed on.
CHOICE = """
def choose(net, plainly):
    if plainly:
        from plain import model
    else:
        model = FSDP(net)
    return model
"""
GIVEN = """
def build(net, strategy=ShardingStrategy.FULL_SHARD):
    return FSDP(net, sharding_strategy=strategy)

def train(net):
    import settings
    from plain import STRATEGY
    return build(net), build(net, STRATEGY)
"""
PLAIN = """
import torch
from torch.distributed.fsdp import ShardingStrategy
model = torch.nn.Linear(1, 1)
STRATEGY = ShardingStrategy.SHARD_GRAD_OP
"""


def _facts(source: str, plain: str = PLAIN) -> ValueFacts:
    files = {"train.py": HEAD + source, "plain.py": plain, "other.py": "import torch\n"}
    return facts_of({path: text.encode() for path, text in files.items()}, ["train.py"], files)


def _returned(source: str, plain: str = PLAIN) -> Certainty:
    """How sure it is that what the last line gives back is a model."""
    return max(_facts(source, plain).known["train.py"].items())[1].model


def _strategies(source: str) -> frozenset[str]:
    wraps = _facts(source).wraps
    return frozenset().union(*(one["sharding_strategy"] for one in wraps.values()))


def test_what_a_function_imports_is_looked_up() -> None:
    assert _returned(CHOICE) is Certainty.MAYBE
    wrapped = HEAD + "model = FSDP(object())\n"
    assert _returned(CHOICE, wrapped) is Certainty.YES
    assert _returned(CHOICE, "from other import *\nfrom more import model\n") is Certainty.MAYBE
    assert _strategies(GIVEN) == {"ShardingStrategy.FULL_SHARD", "ShardingStrategy.SHARD_GRAD_OP"}


REGISTRY = """
REGISTRY = {}

def register(function):
    REGISTRY[function.__name__] = function
    return function
"""
STEPS = """
import registry

@registry.register
def step(given):
    return given
"""


@pytest.mark.parametrize("imports", ["import steps", "from inner import *", "import inner.steps as unused"])
def test_a_module_that_is_imported_for_what_it_does_is_run(imports: str) -> None:
    name = "inner/steps.py" if "inner" in imports else "steps.py"
    call = f"from registry import REGISTRY\n{imports}\nREGISTRY['step'](FSDP(object()))\n"
    files = {"train.py": HEAD + call, "registry.py": REGISTRY, name: STEPS, "inner/__init__.py": "from . import steps"}
    facts = facts_of({path: text.encode() for path, text in files.items()}, ["train.py"], ["train.py"])
    assert [one.model for one in facts.known[name].values()] == [Certainty.YES]


def test_what_is_imported_of_a_module_that_is_not_read_may_be_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_rules.values.modules.MOST", 0)
    assert _returned(CHOICE) is Certainty.MAYBE
    assert (
        _returned("from plain import model\nif input():\n    model = FSDP(object())\nkept = model\n") is Certainty.MAYBE
    )
    assert _strategies(GIVEN) == {"ShardingStrategy.FULL_SHARD", UNKNOWN}


@pytest.mark.parametrize(
    ("bound", "most"), [("modules.MOST", 0), ("interpreter.MOST_FRAMES", 1), ("store.STEPS", 3), ("store.STEPS", 0)]
)
def test_facts_say_that_they_are_of_a_part(bound: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not _facts(CHOICE).is_bounded
    assert not _facts(GIVEN).is_bounded
    assert None not in _facts(GIVEN).thawed
    monkeypatch.setattr(f"fsdp_rules.values.{bound}", most)
    assert _facts(CHOICE).is_bounded
    assert _facts(GIVEN).is_bounded
    assert None in _facts(GIVEN).thawed


def test_a_small_tree_is_read_whole_at_its_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_rules.values.modules.MOST", 0)
    alone = {"train.py": (HEAD + "def train(net):\n    return FSDP(net)\n").encode()}
    assert not facts_of(alone, ["train.py"], alone).is_bounded


def test_functions_and_classes_are_never_spelled_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their texts have all that their frames hold: endless for a file of a thousand lines."""

    def spell(self: object) -> str:
        raise AssertionError

    for kind in (Definition, Class, Frame, Obj):
        monkeypatch.setattr(kind, "__repr__", spell)
    ranked = (
        "def go(rank, net):\n    return net\n\nclass Net:\n    pass\n\nmodel = FSDP(go(rank, Net()))\nmodel.run(rank)\n"
    )
    assert "train.py" in _facts(f"rank = 0\n{ranked}").known
