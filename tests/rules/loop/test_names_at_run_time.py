"""FSDP235 and FSDP229: attributes of a model whose name is no literal."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = """import operator
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

KEY = "module"
OWN = ("head", "body")
TABLE = {"a": "head", "b": "module"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)
        self.scale = 1.0

    def forward(self, x):
        return self.head(x) * self.scale


def run(args, names, x):
    model = FSDP(Net())
    """
LINE = HEAD.count("\n") + 1


def said(body: str, rule: str = "FSDP235") -> list[tuple[int, str]]:
    return [(found.line - LINE, found.level.value) for found in findings(HEAD + body + "\n") if found.rule == rule]


@pytest.mark.parametrize(
    "body",
    [
        "getattr(model, args.name)",
        "hasattr(model, args.name)",
        "delattr(model, args.name)",
        "getattr(model, args.name, None)",
        'getattr(model, f"{args.kind}_dict")()',
        'getattr(model, "no_" + args.kind)()',
        "operator.attrgetter(args.name)(model)",
        "operator.methodcaller(args.name)(model)",
        "model.__getattr__(args.name)",
        "[getattr(model, name) for name in names]",
        "[getattr(model, name) for name in dir(model)]",
        "getattr(model, TABLE.get(args.name))",
        "getattr(model, args.name or KEY)",
    ],
)
def test_a_name_that_may_be_one_of_fsdp1_is_to_be_looked_at(body: str) -> None:
    assert said(body) == [(0, "review")]


@pytest.mark.parametrize(
    "body",
    [
        "getattr(model, KEY)",
        "getattr(model, TABLE[args.kind])",
        'getattr(model, KEY if args.kind else "head")',
        '[getattr(model, name) for name in ("head", KEY)]',
        '[getattr(model, name) for name, _ in (("head", 1), ("module", 2))]',
        "[getattr(model, name) for _, name in enumerate([KEY])]",
        "[getattr(model, name) for name in TABLE.values()]",
        "[getattr(model, name) for _, name in TABLE.items()]",
        'getattr(model, "mod" "ule")',
        'getattr(model, f"{KEY}")',
    ],
)
def test_a_name_that_is_seen_to_be_one_is_manual(body: str) -> None:
    assert said(body) == [(0, "manual")]


@pytest.mark.parametrize(
    "body",
    [
        "[getattr(model, name) for name in OWN]",
        'for name in ("head", "body"):\n        getattr(model, name)',
        "[getattr(model, name) for name in sorted(TABLE)]",
        "[getattr(model, name) for name in TABLE.keys()]",
        'getattr(model, f"layer{args.i}")',
        'getattr(model, "layer" + str(args.i))',
        'getattr(model, "head" if args.i else "body")',
        "getattr(args, args.name)",
        "getattr(Net(), args.name)",
        'name = "head"\n    getattr(model, name)',
        'for name in ("head",):\n        pass\n    for name in OWN:\n        getattr(model, name)',
        "with FSDP.summon_full_params(model):\n        getattr(model, args.name)",
    ],
)
def test_a_name_that_is_none_of_fsdp1_is_left(body: str) -> None:
    assert said(body) == []


def test_a_model_that_may_be_sharded_gets_a_note() -> None:
    source = "def use(model, args):\n    return getattr(model, args.name)\n"
    main = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom example import use\n"
    sure, unsure = f"{main}use(FSDP(net), 1)\n", f"{main}use(FSDP(net) if args.fsdp else net, 1)\n"
    found = [
        [one.level.value for one in findings(source, main=text) if one.rule == "FSDP235"] for text in (sure, unsure)
    ]
    assert found[0] == ["review"]
    assert found[1] in (["info"], ["review"])
    assert findings(source) == ()


@pytest.mark.parametrize(
    ("body", "level"),
    [
        ('for name, value in {"scale": 2.0, "b": 3}.items():\n        setattr(model, name, value)', "manual"),
        ('for name in ("scale", "b"):\n        setattr(model, name, 2.0)', "manual"),
        ('setattr(model, "sc" + "ale", 2.0)', "manual"),
        ("for name, value in args.items():\n        setattr(model, name, value)", "review"),
        ("setattr(model, args.name, 2.0)", "review"),
        ("setattr(model, args.name, nn.Linear(2, 2))", "manual"),
    ],
)
def test_an_attribute_that_the_model_may_read(body: str, level: str) -> None:
    assert [found for _, found in said(body, "FSDP229")] == [level]


@pytest.mark.parametrize(
    "body",
    [
        'for name in ("step", "b"):\n        setattr(model, name, 2.0)',
        'setattr(model, f"_last_{args.name}", 2.0)',
        "setattr(args, args.name, 2.0)",
        "setattr(model.module, args.name, 2.0)",
        'for name in ("scale", "b"):\n        setattr(model, name, FSDP(getattr(model, name)))',
        "for name, child in model.named_children():\n        setattr(model, name, FSDP(child))",
    ],
)
def test_an_attribute_that_the_model_does_not_read(body: str) -> None:
    assert said(body, "FSDP229") == []
