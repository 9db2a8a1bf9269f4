"""Process groups that are made elsewhere than the model is wrapped: a subgroup contradicts that all ranks are in it."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite_tree

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
DIST = "import torch.distributed as dist\n"
LOAD = "    model.load_state_dict(state)\n"

FORMS: dict[str, dict[str, str]] = {
    "another method": {
        "main.py": f"""\
{DIST}{WRAP}

class Trainer:
    def __init__(self, net):
        self.group = dist.new_group({{}})
        self.net = net

    def wrap(self):
        self.model = FSDP(self.net, process_group=self.group)

    def load(self, state):
        self.model.load_state_dict(state)
"""
    },
    "the module": {
        "main.py": f"""\
{DIST}{WRAP}
GROUP = dist.new_group({{}})


def main(net, state):
    model = FSDP(net, process_group=GROUP)
{LOAD}"""
    },
    "another module": {
        "groups.py": f"{DIST}\nGROUP = dist.new_group({{}})\n",
        "main.py": f"""\
from groups import GROUP
{WRAP}

def main(net, state):
    model = FSDP(net, process_group=GROUP)
{LOAD}""",
    },
    "a function of another module": {
        "groups.py": f"{DIST}\n\ndef make():\n    return dist.new_group({{}})\n",
        "main.py": f"""\
import groups
{WRAP}

def main(net, state):
    model = FSDP(net, process_group=groups.make())
{LOAD}""",
    },
    "an argument, through three files": {
        "build.py": f"{WRAP}\n\ndef build(net, group):\n    return FSDP(net, process_group=group)\n",
        "between.py": "import build\n\n\ndef make(net, *given):\n    return build.build(net, *given)\n",
        "main.py": f"""\
{DIST}from between import make


def main(net, state):
    model = make(net, dist.new_group({{}}))
{LOAD}""",
    },
    "a dataclass": {
        "mesh.py": "from dataclasses import dataclass\n\n\n@dataclass\nclass Mesh:\n    group: object\n",
        "main.py": f"""\
{DIST}from mesh import Mesh
{WRAP}

def main(net, state):
    mesh = Mesh(dist.new_group({{}}))
    model = FSDP(net, process_group=mesh.group)
{LOAD}""",
    },
    "one of several": {
        "main.py": f"""\
{DIST}{WRAP}

class Trainer:
    def groups(self):
        return [dist.new_group({{}}) for n in range(2)]

    def load(self, net, state, n):
        model = FSDP(net, process_group=self.groups()[n])
    {LOAD}"""
    },
}


def is_sent(form: str, ranks: str) -> bool:
    """Whether rank 0 sends the state that is loaded to all ranks, which a part of them would wait for in vain."""
    files = {path: text.replace("{}", ranks).encode() for path, text in FORMS[form].items()}
    result = rewrite_tree(files)["main.py"]
    assert isinstance(result, Changed)
    assert [found.level.value for found in result.findings if found.rule == "FSDP309"] == ["review"]
    return b"broadcast_from_rank0" in result.source


@pytest.mark.parametrize("form", FORMS)
def test_a_subgroup_is_found_where_it_is_made(form: str) -> None:
    assert not is_sent(form, "[0, 1]")


@pytest.mark.parametrize("ranks", ["list(range(2, 4))", "list(range(2 * SIZE, 3 * SIZE))", "range(START, START + 2)"])
def test_a_range_that_begins_elsewhere(ranks: str) -> None:
    assert not is_sent("one of several", ranks)
    assert is_sent("one of several", "range(4)") and is_sent("one of several", "range(0, SIZE)")


@pytest.mark.parametrize("form", FORMS)
def test_a_group_of_all_ranks_contradicts_nothing(form: str) -> None:
    assert is_sent(form, "")
