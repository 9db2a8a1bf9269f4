"""What a script says by bare names and words changes nothing in a script beside it, and counts in its own program."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from fsdp_rules.project.programs import Programs
from fsdp_rules.project.project import Project, index_source
from fsdp_rules.project.seen import seen_from
from fsdp_rules.values.by_position import facts_of
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

HEAD = """\
import torch
import torch.nn as nn
from torch.distributed.fsdp import (
    FullStateDictConfig, FullyShardedDataParallel as FSDP, MixedPrecision, StateDictType
)
"""
MAIN = '\nif __name__ == "__main__":\n    main()\n'


class Pair(NamedTuple):
    """A script, and what another file says that may be of its program."""

    script: str
    other: str


TRAIN = """
def main():
    model = FSDP(nn.Linear(8, 8), use_orig_params=True, device_id=torch.cuda.current_device())
    model(torch.rand(2, 8)).sum().backward()
"""
PAIRS = {
    "a word of the tree": Pair(
        TRAIN.replace("use_orig", "mixed_precision=MixedPrecision(param_dtype=torch.bfloat16), use_orig"),
        "class Conv(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.n = nn.BatchNorm2d(3)\n",
    ),
    "a kind of wrapper": Pair(
        TRAIN + "    return use(model)\ndef use(core):\n    with core.no_sync():\n        core(1)\n",
        "def wrap(net):\n    return nn.parallel.DistributedDataParallel(net)\n",
    ),
    "a method of the project": Pair(
        "def main(job):\n    FSDP(job.net)\n    job.model.clip_grad_norm_(1.0)\n",
        "class Own:\n    def clip_grad_norm_(self, limit):\n        return limit\n",
    ),
    "who takes a state": Pair(
        TRAIN + "    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig())\n"
        "    return model.state_dict()\n",
        "def save():\n    net = FSDP(nn.Linear(2, 2))\n    return net.state_dict()\n",
    ),
    "who sets the kind of state": Pair(
        TRAIN + "    return model.state_dict()\n",
        "def setup(net):\n    FSDP.set_state_dict_type(net, StateDictType.SHARDED_STATE_DICT)\n",
    ),
    "who asks for the class": Pair(
        "from helpers import make\n" + TRAIN + "    net = make(1)\n    if holds(net):\n        net.module.stop()\n",
        "def holds(model):\n    return isinstance(model, FSDP)\n",
    ),
    "what a method is called on": Pair(
        "class Net(nn.Module):\n    def param_groups(self):\n        for p in self.parameters():\n"
        "            p.data.mul_(2)\n        return [p.data.sum() for p in self.parameters()]\n"
        "def main():\n    return Net().param_groups()\n",
        "def run(net):\n    model = FSDP(net)\n    return model.param_groups()\n",
    ),
    "an attribute that holds a model": Pair(
        "def main(kinds):\n    torch.save(kinds['a']().core.state_dict(), 'x')\n",
        "class Job:\n    def __init__(self, net):\n        self.core = FSDP(net)\n",
    ),
    "what a call makes": Pair(
        TRAIN + "    model.head = Adapter(8)\n    return model\n",
        "class Adapter(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.l = nn.Linear(n, n)\n",
    ),
    "what reads a part": Pair(
        TRAIN + "    model.scale = 3\n    return model\n",
        "class Other(nn.Module):\n    def forward(self, x):\n        return self.scale * x\n",
    ),
    "a wrap that is rewritten": Pair(
        "def main(job):\n    FSDP(job.net)\n    job.net.clip_grad_norm_(1.0)\n",
        "def wrap():\n    model = FSDP(nn.Linear(8, 8), device_id=0)\n    return model\n",
    ),
}


def said(files: dict[str, str]) -> tuple[str, list[tuple[str, int, str]]]:
    """What becomes of the script, and what is said of it."""
    result = rewrite_tree({name: text.encode() for name, text in files.items()}).get("script.py", Unchanged())
    assert isinstance(result, Changed | Unchanged), result
    found = [(one.rule, one.line, one.message) for one in result.findings]
    return (result.source.decode() if isinstance(result, Changed) else "", found)


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("end", [MAIN, "\nmain()\n"], ids=["guarded", "as it is read"])
def test_what_another_program_says_changes_nothing(pair: Pair, end: str) -> None:
    script, other = HEAD + pair.script + end, HEAD + pair.other
    nothing = HEAD + "def main():\n    print(1)\n" + end
    started = other + "\ndef main():\n    print(1)\n" + end
    assert said({"script.py": script, "other.py": started}) == said({"script.py": script, "other.py": nothing})


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("common", ["import other\nimport script\n", "from script import main\nimport other\nmain()\n"])
def test_what_its_own_program_says_counts(pair: Pair, common: str) -> None:
    script, other = HEAD + pair.script + MAIN, HEAD + pair.other
    nothing = HEAD + "def main():\n    print(1)\n"
    both = {"script.py": script, "run.py": common}
    assert said({**both, "other.py": other}) != said({**both, "other.py": nothing})


SHARDS = """\
def prepare(net):
    model = FSDP(net)
    job.core = model
    return model.param_groups()
"""


def project(imports: dict[str, set[str]]) -> Project:
    """A script and one that shards, run by themselves or by what imports them."""
    files = {"script.py": HEAD + MAIN, "other.py": HEAD + SHARDS + MAIN, "run.py": ""}
    sources = {path: text.encode() for path, text in files.items()}
    facts = [index_source(path, data) for path, data in sources.items()]
    programs = Programs.of({path: imports.get(path, set()) for path in sources}, sources.items())
    project = Project.build([one for one in facts if one is not None], programs=programs)
    return project.with_values(facts_of(sources, sources, sources, programs=programs))


@pytest.mark.parametrize("imports", [{"run.py": {"script.py", "other.py"}}, {"script.py": {"other.py"}}])
def test_names_of_sharded_models_are_those_of_the_same_program(imports: dict[str, set[str]]) -> None:
    apart, together = seen_from(project({}), "script.py"), seen_from(project(imports), "script.py")
    assert (apart.may_hold("core"), together.may_hold("core")) == (False, True)


def test_what_shards_sees_itself() -> None:
    own = seen_from(project({}), "other.py")
    assert own.may_hold("core")


def test_a_checkpoint_goes_from_one_program_to_another() -> None:
    apart = seen_from(project({}), "run.py")
    assert "fsdp1" not in apart.flags
    assert apart.may_trap(False)
