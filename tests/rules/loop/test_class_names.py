"""Names of classes that are compared, searched or looked up: FSDP2 gives sharded modules other ones."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

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
        RUN.format("return names[model._get_name()]"),
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
    # The units of fsdp_compat keep the names of their classes.
    said = [] if to == "shim" and "__name__" in body else ["review"]
    assert levels(HEAD + RUN.format(body), to) == said


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    "body",
    [
        "return {type(model).__name__: model.state_dict}",
        'open(f"{type(model).__name__}.pt")',
        'path = names + "/" + model.__class__.__qualname__\n    return open(path)',
        "kind = type(model).__name__\n    names.append(kind)",
        "net.kind = type(model).__name__",
    ],
)
def test_names_that_keys_and_files_are_formed_of_are_to_be_reviewed(body: str, to: str) -> None:
    assert levels(HEAD + RUN.format(body), to) == ["review"]


MODEL = """
import torch.nn as nn

class Net(nn.Module):
    def forward(self, x):
        return x

    def save(self, names):
        {}
"""
OWN = "{0}.__bases__[1] if isinstance({1}, FSDPModule) else {0}"


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("names[f'{type(model.module).__name__}/loss'] = 1", '{type(model).__name__.removeprefix("FSDP")}/loss'),
        ('open(f"{model.module.__class__.__name__}.pt")', "{model.__class__.__name__.removeprefix('FSDP')}.pt"),
        ('return type(model.module).__name__ == "Net"', 'type(model).__name__.removeprefix("FSDP") == "Net"'),
        (
            "return getattr(names, type(model.module).__name__)",
            'getattr(names, type(model).__name__.removeprefix("FSDP"))',
        ),
        ("return names[type(model.module)]", f"names[{OWN.format('type(model)', 'model')}]"),
        ("return model.module.__class__ is names", f"({OWN.format('model.__class__', 'model')}) is names"),
        ("return type(model.module) in names", f"({OWN.format('type(model)', 'model')}) in names"),
    ],
)
def test_what_the_wrapper_held_had_its_own_class(body: str, written: str) -> None:
    result = rewrite(HEAD + RUN.format(body), wrapping=WRAP)
    assert isinstance(result, Changed) and written in result.source.decode()
    assert levels(HEAD + RUN.format(body)) == ["safe"]


UNITS = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\ndef look(model, names):\n    {}\n"
NAME = 'type(unit).__name__.removeprefix("FSDP")'


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("for unit in FSDP.fsdp_modules(model):\n        names.append(type(unit.module).__name__)", NAME),
        ("return [unit.module.__class__.__name__ for unit in FSDP.fsdp_modules(model)]", "removeprefix"),
        ("for i, unit in enumerate(FSDP.fsdp_modules(model)):\n        names[i] = type(unit.module).__name__", NAME),
        ("units = FSDP.fsdp_modules(model)\n    return {type(unit.module).__name__: unit for unit in units}", NAME),
    ],
)
def test_what_each_unit_of_a_loop_held_had_its_own_class(body: str, written: str) -> None:
    result = rewrite(UNITS.format(body), wrapping=WRAP)
    assert isinstance(result, Changed) and written in result.source.decode()
    assert "unit.module" not in result.source.decode()


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("names[type(self).__name__] = 1", 'names[type(self).__name__.removeprefix("FSDP")] = 1'),
        ('open(f"{self.__class__.__name__}.pt")', "{self.__class__.__name__.removeprefix('FSDP')}.pt"),
        ("return names[type(self)]", f"names[{OWN.format('type(self)', 'self')}]"),
        ("return isinstance(names, type(self))", f"isinstance(names, ({OWN.format('type(self)', 'self')}))"),
    ],
)
def test_a_module_asks_for_its_own_class(body: str, written: str) -> None:
    source = MODEL.format(body) + WRAP
    result = rewrite(source)
    assert isinstance(result, Changed) and written in result.source.decode()
    assert levels(source) == ["safe"]


@pytest.mark.parametrize(
    "body", ["return type(self)(names)", "raise TypeError(type(self).__name__)", "print(f'{type(self)}')"]
)
def test_nothing_is_said_where_a_module_makes_another_or_says_what_it_is(body: str) -> None:
    assert levels(MODEL.format(body) + WRAP) == []


@pytest.mark.parametrize("body", ["names[type(self).__name__] = 1", "return getattr(names, type(self).__name__)"])
def test_a_module_that_is_still_being_made_is_not_sharded(body: str) -> None:
    assert levels(MODEL.format(body).replace("save", "__init__") + WRAP) == []


HERE = WRAP.splitlines()[0] + "\n\ndef run(net, names):\n    model = FSDP(net)\n    {}\n"


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("return names[type(model).__name__]", 'names["FullyShardedDataParallel"]'),
        ("names.append(model.__class__.__name__)", 'names.append("FullyShardedDataParallel")'),
        ('open(f"{type(model).__name__}.pt")', "{'FullyShardedDataParallel'}.pt"),
    ],
)
def test_the_name_of_the_wrapper_that_was_is_written_out(body: str, written: str, to: str) -> None:
    result = rewrite(HERE.format(body), Settings(to=to))  # type: ignore[arg-type]
    assert isinstance(result, Changed) and written in result.source.decode()
    assert levels(HERE.format(body), to) == ["safe"]


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize("body", ["return names[type(model)]", "return names.get(model.__class__)"])
def test_what_is_kept_by_the_class_of_the_wrapper_is_left_to_a_human(body: str, to: str) -> None:
    assert levels(HERE.format(body), to) == ["manual"]


def test_the_method_of_torch_that_gives_the_name() -> None:
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n" + (
        "def run(net, kinds):\n    model = FSDP(net)\n"
        "    return kinds[model.module._get_name()], {model._get_name(): 1}\n"
    )
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b'kinds[model._get_name().removeprefix("FSDP")], {"FullyShardedDataParallel": 1}' in result.source


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("return next(names[one] for one in type(model).__mro__ if one in names)", ["manual"]),
        ("import inspect\n    return [one for one in inspect.getmro(model.__class__) if one in names]", ["manual"]),
        ("return next(names[one] for one in type(names).__mro__ if one in names)", []),
    ],
)
def test_classes_that_are_looked_up_in_order(source: str, said: list[str], to: str) -> None:
    assert levels(HEAD + RUN.format(source), to) == said
