"""Names of classes that are compared, searched or looked up: FSDP2 gives sharded modules other ones."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

WRAP = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def wrap(net):
    return FSDP(net)
"""
HEAD = "import re\nfrom wrapping import wrap\n"
RUN = "def run(net, names):\n    model = wrap(net)\n    {}\n"


def levels(source: str, to: str = "native") -> list[str]:
    found = findings(source, Settings(to=to), wrapping=WRAP)  # type: ignore[arg-type]
    return [entry.level.value for entry in found if entry.rule == "FSDP205"]


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    "source",
    [
        'NAME = "FullyShardedDataParallel"\n' + RUN.format("return type(model).__name__ == NAME"),
        RUN.format('name = "FullyShardedDataParallel"\n    return name != model.__class__.__name__'),
        'KINDS = ("FullyShardedDataParallel", "Net")\n' + RUN.format("return type(model).__name__ in KINDS"),
        "from names import NAME\n" + RUN.format("return type(model).__qualname__ == NAME"),
        RUN.format('kind = type(model).__name__\n    return kind == "FullyShardedDataParallel"'),
        RUN.format('kind = type(model).__name__\n    return kind.startswith("FullySharded")'),
        RUN.format('return type(model).__name__.lower().endswith("parallel")'),
        RUN.format('return "FullySharded" in str(type(model))'),
        RUN.format("return names[type(model).__name__]"),
        RUN.format("return names.get(model.__class__.__name__)"),
        RUN.format('return re.match("Fully.*", type(model).__name__)'),
        "class Run:\n    def __init__(self, net):\n        self.net = wrap(net)\n"
        "    def kind(self, name):\n        return type(self.net).__name__ == name\n",
    ],
)
def test_names_that_the_program_hangs_on_are_left_to_a_human(source: str, to: str) -> None:
    assert levels(HEAD + source, to) == ["manual"]


@pytest.mark.parametrize(
    "source",
    [
        RUN.format('print(f"a {type(model).__name__}")'),
        RUN.format("print(type(model).__name__)"),
        RUN.format("return type(net[0]).__name__ == names"),
        RUN.format("name = type(model).__name__\n    print(name)"),
        RUN.format('return type(model).__name__ == "Net"'),
        RUN.format('return type(model).__name__ in ("Net", "Other")'),
        RUN.format("return type(model) is names"),
        RUN.format('return [m for m in net.modules() if type(m).__name__ == "Block"]').replace("wrap(net)", "net"),
        "def run(net, names):\n    return type(names).__name__ == net\n",
    ],
)
def test_nothing_is_said_about_other_names(source: str) -> None:
    assert levels(HEAD + source) == []


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    "body",
    [
        'return [m for m in model.modules() if type(m).__name__ == "Block"]',
        "return [m for m in model.modules() if type(m) is names]",
        "return {n: m for n, m in model.named_modules() if type(m) in names}",
        "for m in model.modules():\n        if m.__class__ == names:\n            m.on = True",
        "for _, m in model.named_modules():\n        if m.__class__.__name__ == names:\n            m.on = True",
    ],
)
def test_parts_may_be_units(body: str, to: str) -> None:
    assert levels(HEAD + RUN.format(body), to) == ["review"]


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    "body",
    [
        "return {type(model).__name__: model.state_dict}",
        'open(f"{type(model).__name__}.pt")',
        'path = names + "/" + model.__class__.__qualname__\n    return open(path)',
        "names[f'{type(model.module).__name__}/loss'] = 1",
        "kind = type(model).__name__\n    names.append(kind)",
        "net.kind = type(model).__name__",
    ],
)
def test_names_that_keys_and_files_are_formed_of_are_to_be_reviewed(body: str, to: str) -> None:
    assert levels(HEAD + RUN.format(body), to) == ["review"]
