"""Functions that wrap, kept in tables and registries and looked up by name: over three and four files."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Unchanged
from tests.rules.helpers import rewrite_tree

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
WRAP = f"{HEAD}\ndef fsdp_wrap(net):\n    return FSDP(net)\n"
STATIC = f"{HEAD}\nclass Wrapper:\n    @staticmethod\n    def fsdp_wrap(net):\n        return FSDP(net)\n"
CLASS = f"{HEAD}\nclass Engine:\n    def prepare(self, net):\n        return FSDP(net)\n"
REGISTRY = """
class Registry:
    def __init__(self):
        self.held = {}

    def add(self, name):
        def put(made):
            self.held[name] = made
            return made
        return put

    def get(self, name):
        return self.held[name]

WRAPS = Registry()
"""
USES = "def keep(core):\n    return core.module.name\n"
RUN = "from uses import keep\n\ndef run(net, kind):\n    keep({})\n"
TABLE = 'from one import fsdp_wrap\nKINDS = {"a": fsdp_wrap, "b": None}\n'
REGISTERED = WRAP.replace("def fsdp_wrap", '@WRAPS.add("a")\ndef fsdp_wrap').replace(
    "\n", "\nfrom table import WRAPS\n", 1
)
TREES = {
    "a function of the table's file": {
        "one": WRAP,
        "table": f"{TABLE}def build(net, kind):\n    return KINDS[kind](net)\n",
        "main": "from table import build\n" + RUN.format("build(net, kind)"),
    },
    "a table that another file calls from": {
        "one": WRAP,
        "table": TABLE,
        "main": "from table import KINDS\n" + RUN.format("KINDS[kind](net)"),
    },
    "get": {
        "one": WRAP,
        "table": TABLE,
        "calls": "from table import KINDS\ndef build(net, kind):\n    make = KINDS.get(kind)\n    return make(net)\n",
        "main": "from calls import build\n" + RUN.format("build(net, kind)"),
    },
    "a static method": {
        "one": STATIC,
        "table": 'from one import Wrapper\nKINDS = {"a": Wrapper.fsdp_wrap}\n',
        "main": "from table import KINDS\n" + RUN.format("KINDS[kind](net)"),
    },
    "classes": {
        "one": CLASS,
        "table": 'from one import Engine\nKINDS = {"a": Engine}\n',
        "main": (
            "from table import KINDS\nfrom uses import keep\n\ndef run(net, kind):\n"
            "    engine = KINDS[kind]()\n    net = engine.prepare(net)\n    keep(net)\n"
        ),
    },
    "a registry": {
        "one": REGISTERED,
        "table": REGISTRY,
        "main": "import one\nfrom table import WRAPS\n" + RUN.format("WRAPS.get(kind)(net)"),
    },
    "a registry in an object": {
        "one": REGISTERED,
        "table": REGISTRY,
        "main": (
            "import one\nfrom table import WRAPS\nfrom uses import keep\n\nclass Job:\n"
            "    def __init__(self, net, kind):\n        self.make = WRAPS.get(kind)\n"
            "        self.net = self.make(net)\n\n    def run(self):\n        keep(self.net)\n"
        ),
    },
    "a partial of another file": {
        "one": f"{HEAD}from functools import partial\nmake = partial(FSDP, use_orig_params=True)\n",
        "main": "from one import make\n" + RUN.format("make(net)"),
    },
    "getattr of a module": {
        "one": WRAP,
        "table": "import one\n\ndef find(kind):\n    return getattr(one, kind)\n",
        "main": "from table import find\n" + RUN.format('find(kind + "_wrap")(net)'),
    },
}


@pytest.mark.parametrize("files", TREES.values(), ids=TREES.keys())
def test_what_a_table_gives_is_followed(files: dict[str, str]) -> None:
    results = rewrite_tree({f"{name}.py": text.encode() for name, text in {**files, "uses": USES}.items()})
    assert [found.rule for found in results["uses.py"].findings] == ["FSDP206"]


@pytest.mark.parametrize(
    "made",
    [
        "[FSDP(one) for one in (a, b)]",
        "list(map(FSDP, (a, b)))",
        "tuple(FSDP(one) for one in (a, b))",
        "[FSDP(a), FSDP(b)]",
    ],
)
@pytest.mark.parametrize("through", ["return {}", "found = {}\n    return found"])
def test_elements_of_a_list_that_is_returned_and_unpacked_are_followed(made: str, through: str) -> None:
    lines = "def run(a, b):\n    first, optimizer = make(a, b)\n    keep(first)\n    count(optimizer)\n"
    files = {
        "one": f"{HEAD}\ndef make(a, b):\n    {through.format(made)}\n",
        "uses": f"{USES}\ndef count(optimizer):\n    return optimizer.module.size\n",
        "main": f"from one import make\nfrom uses import count, keep\n\n{lines}",
    }
    results = rewrite_tree({f"{name}.py": text.encode() for name, text in files.items()})
    # The second is a model as well, whatever it is called.
    assert [(found.rule, found.line) for found in results["uses.py"].findings] == [("FSDP206", 2), ("FSDP206", 5)]


@pytest.mark.parametrize("files", TREES.values(), ids=TREES.keys())
def test_a_table_of_other_functions_says_nothing(files: dict[str, str]) -> None:
    plain = {
        name: text.replace("return FSDP(net)", "return net").replace("partial(FSDP", "partial(dict")
        for name, text in files.items()
    }
    other = f"{HEAD}\ndef other(net):\n    return FSDP(net).eval()\n"
    trees = {f"{name}.py": text.encode() for name, text in {**plain, "uses": USES, "other": other}.items()}
    results = rewrite_tree(trees)
    assert "uses.py" not in results or results["uses.py"] == Unchanged()
