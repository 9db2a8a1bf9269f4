"""Names of a sharded model's modules and buffers that a program compares, matches or counts the parts of."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

FSDP1 = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
#: Where the model of the other file is. What an object only may hold is an assumption.
OWNERS = {
    "self": (
        "class Run:\n    def __init__(self, net):\n        self.brain = FSDP(net)\n        look(self.brain)\n",
        "brain",
    ),
    "dictionary": ("def run(net):\n    look({'main': FSDP(net)})\n", "brain['main']"),
    "factory": ("def make(net):\n    return FSDP(net)\n\ndef run(net):\n    look(make(net))\n", "brain"),
    "dataclass": (
        "@dataclass\nclass Box:\n    core: object\n\ndef run(net):\n    look(Box(FSDP(net)))\n",
        "brain.core",
    ),
}
LOOPS = ("named_modules()", "named_buffers()", "named_modules(remove_duplicate=False)")
TESTS = (
    "n == 'head'",
    "n != 'head.norm'",
    "n.startswith('blocks')",
    "n in ('head', 'embed')",
    "n in SKIP",
    "RATES.get(n)",
    "len(n.split('.')) == 2",
    "n.split('.')[0] == 'head'",
    "n.count('.') == 1",
    "re.match('blocks', n)",
    "PATTERN.fullmatch(n)",
    "re.search('^head', n)",
    "fnmatch.fnmatch(n, 'blocks.*')",
)
NONE = (
    "n == ''",
    "'head' in n",
    "n.endswith('head')",
    "n.split('.')[-1] == 'norm'",
    "re.search('head', n)",
    "re.match('.*head', n)",
    "fnmatch.fnmatch(n, '*.norm')",
    "m.weight is None",
    "brain.get_submodule('blocks.0') is m",
)
HEAD = "import fnmatch, re\nSKIP = {'head'}\nRATES = {'head': 0.1}\nPATTERN = re.compile(r'head\\..*')\n\n"


def said(loop: str, test: str, owner: str, to: str = "native") -> list[str]:
    main, model = OWNERS[owner]
    source = f"{HEAD}def look(brain):\n    return [m for n, m in {model}.{loop} if {test}]\n"
    main = f"from dataclasses import dataclass\n{FSDP1}from example import look\n\n{main}"
    found = findings(source, Settings(to=to), main=main)
    assert findings(source, Settings(to=to), main=main.replace("FSDP(net)", "list(net)")) == ()
    return [each.level.value for each in found if each.rule == "FSDP207"]


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize(("index", "test"), [*enumerate(TESTS)])
def test_no_fsdp1_name_was_so(index: int, test: str, owner: str) -> None:
    assert said(LOOPS[index % len(LOOPS)], test, owner) == ["manual"]


@pytest.mark.parametrize("test", TESTS)
def test_with_the_shim(test: str) -> None:
    assert said("named_modules()", test, "self", "shim") == ["manual"]


@pytest.mark.parametrize("test", NONE)
def test_what_is_the_same_in_both(test: str) -> None:
    assert said("named_modules()", test, "self") == []


@pytest.mark.parametrize("test", ["re.match('blocks', n)", "fnmatch.fnmatch(n, 'blocks.*')", "n.count('.') == 1"])
def test_names_of_parameters_too(test: str) -> None:
    assert said("named_parameters()", test, "self") == ["manual"]
