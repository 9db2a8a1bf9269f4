"""Methods of objects that a table, a registry or a function gives: they wrap a model, over three and four files."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Unchanged
from tests.rules.helpers import rewrite_tree

CLASSES = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

class Engine:
    def wrap(self, net):
        return FSDP(net)

class Other:
    def wrap(self, net):
        return net
"""
HEAD = "from eng import Engine, Other\n"
TABLES = {
    "classes": (f'{HEAD}KINDS = {{"a": Engine, "b": Other}}\n', "KINDS", "KINDS[kind]()"),
    "objects": (f'{HEAD}KINDS = {{"a": Engine(), "b": Other()}}\n', "KINDS", "KINDS[kind]"),
    "a list": (f"{HEAD}KINDS = [Engine(), Other()]\n", "KINDS", "KINDS[0]"),
    "get": (f'{HEAD}KINDS = {{"a": Engine, "b": Other}}\n', "KINDS", "KINDS.get(kind)()"),
    "a function": (
        f'{HEAD}def build(kind):\n    return Engine() if kind == "a" else Other()\n',
        "build",
        "build(kind)",
    ),
    "a function with a table": (
        f'{HEAD}KINDS = {{"a": Engine}}\ndef build(kind, *given):\n    return KINDS[kind](*given)\n',
        "build",
        "build(kind)",
    ),
    "a function that gives a class": (f"{HEAD}def pick(kind):\n    return Engine\n", "pick", "pick(kind)()"),
    "a static method": (
        f"{HEAD}class Factory:\n    @staticmethod\n    def make(kind):\n        return Engine()\n",
        "Factory",
        "Factory.make(kind)",
    ),
    "a method": (
        f"{HEAD}class Factory:\n    def make(self):\n        return Engine()\n",
        "Factory",
        "Factory().make()",
    ),
}
USES = {
    "at once": "keep({}.wrap(net))",
    "a name": "net = {}.wrap(net)\n    keep(net)",
    "an object": "engine = {}\n    net = engine.wrap(net)\n    keep(net)",
}


def said(files: dict[str, str]) -> list[str]:
    """The rules that speak about the file that uses the model."""
    result = rewrite_tree({f"{name}.py": text.encode() for name, text in files.items()}).get("uses.py", Unchanged())
    return [one.rule for one in result.findings]  # type: ignore[union-attr]


@pytest.mark.parametrize("uses", USES.values(), ids=USES.keys())
@pytest.mark.parametrize(("table", "name", "taken"), TABLES.values(), ids=TABLES.keys())
def test_the_method_wraps(table: str, name: str, taken: str, uses: str) -> None:
    main = f"from table import {name}\nfrom uses import keep\n\ndef run(net, kind):\n    {uses.format(taken)}\n"
    files = {
        "eng": CLASSES,
        "table": table,
        "main": main,
        "uses": "def keep(core):\n    return core.module.name\n",
        "other": "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nmodel = FSDP(net).eval()\n",
    }
    assert said(files) == ["FSDP206"]
    assert said({**files, "eng": CLASSES.replace("FSDP(net)", "net")}) == []


def test_a_method_of_another_library_is_none() -> None:
    main = "import polars\nfrom uses import keep\n\ndef run(net):\n    keep(polars.frame(net).wrap(net))\n"
    uses = "def keep(core):\n    return core.module.name\n"
    assert said({"eng": CLASSES, "main": main, "uses": uses}) == []
