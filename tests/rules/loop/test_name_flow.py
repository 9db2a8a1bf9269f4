"""FSDP207: names of a sharded model's parameters wherever they go: functions, generators, objects, dictionaries."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = """
import json
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Box:
    def __init__(self, names):
        self.names = names

def names(m):
    return [n for n, _ in m.named_parameters()]

def pairs(m):
    yield from m.named_parameters()

def decays(name):
    return not name.startswith("embed")

def run(net, flag):
    model = FSDP(net, use_orig_params=True)
    {use}
"""
#: What differs, and the same for names that the model had before.
USES = {
    "a list of a function": 'return [n for n in names({model}) if n == "head.weight"]',
    "a generator": 'return [p for n, p in pairs({model}) if n.startswith("head")]',
    "a function that is given one": "return [p for n, p in {model}.named_parameters() if decays(n)]",
    "a lambda": 'return list(filter(lambda pair: pair[0] == "head.bias", {model}.named_parameters()))',
    "an element": 'return names({model})[0] == "head.weight"',
    "keys": 'return [n for n in dict({model}.named_parameters()).keys() if n == "head.bias"]',
    "items": 'return [n for n, p in {{n: 1 for n in names({model})}}.items() if n == "head.bias"]',
    "a dictionary that is saved": "kept = {{}}\n    for n in names({model}):\n        kept[n] = 1\n"
    '    json.dump(kept, open("kept", "w"))',
    "a dictionary of keys alone": 'return [n for n in dict.fromkeys(names({model}), 1) if n == "head.bias"]',
    "an object": 'box = Box(set(names({model})))\n    return [n for n in box.names if n == "head.bias"]',
    "an object that is saved": 'box = Box(names({model}))\n    json.dump({{"names": box.names}}, open("kept", "w"))',
}


def said(use: str) -> list[str]:
    return [one.level.value for one in findings(HEAD.format(use=use)) if one.rule == "FSDP207"]


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_they_are_followed(use: str) -> None:
    assert said(use.format(model="model")) == ["manual"]
    assert said(use.format(model="net")) == []


def test_names_from_before_are_told_apart_in_one_function() -> None:
    use = "box = Box(set(names(net)))\n    return [p for n, p in pairs(model) if n in box.names]"
    assert said(use) == ["manual"]
    assert said(use.replace("names(net)", "names(model)")) == []


@pytest.mark.parametrize("recurse", ["recurse=False", "recurse=flag"])
def test_a_module_s_own_names_have_no_prefix(recurse: str) -> None:
    use = f'return [n for m in model.modules() for n, p in m.named_parameters({recurse}) if n == "bias"]'
    assert bool(said(use)) == ("flag" in recurse)


GATHERED = {
    "in the block": "with FSDP.summon_full_params(model):\n        kept = names(model)",
    "in a function that is called there": "def take():\n        kept.extend(names(model))\n    kept = []\n"
    "    with FSDP.summon_full_params(model):\n        take()",
}


@pytest.mark.parametrize("taken", GATHERED.values(), ids=GATHERED)
def test_names_have_no_prefix_while_parameters_are_gathered(taken: str) -> None:
    use = taken + '\n    json.dump(kept, open("kept", "w"))'
    assert said(use) == []
    assert said(use.replace("with FSDP.summon_full_params(model)", "if True")) == ["manual"]
    other = HEAD.format(use=taken + "\n    write(kept)").replace("import json", "from store import write")
    store = "import json\n\ndef write(kept):\n    json.dump({'names': kept}, open('kept', 'w'))\n"
    where = {"other": other}
    assert [one for one in findings(store, **where) if one.rule == "FSDP207"] == []


def test_a_key_of_a_dictionary_is_compared_with_its_keys_alone() -> None:
    use = "group = {{'params': [p for _, p in pairs(model)], 'names': {names}}}\n    return group.pop('names')"
    assert said(use.format(names="names(model)")) == []
    assert said(
        use.replace("return group", "json.dump(group, open('kept', 'w')); return group").format(names="names(model)")
    )


def test_a_function_that_is_given_names_of_both_changes_what_it_says_of_the_sharded_ones() -> None:
    use = "kept = [p for n, p in net.named_parameters() if decays(n)]\n    return [p for n, p in {model} if decays(n)]"
    assert said(use.format(model="model.named_parameters()")) == ["manual"]
    assert said(use.format(model="net.named_parameters()")) == []
