"""FSDP234: code that asks whether a model has ``module``, which a sharded one has not under FSDP2."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import findings, rewrite

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
MAIN = f"{HEAD}from example import use\n\nmodel = FSDP(net)\nuse(model)\n"


def said(source: str, **others: str) -> list[tuple[int, str]]:
    return [(found.line, found.level) for found in findings(source, **others) if found.rule == "FSDP234"]


@pytest.mark.parametrize(
    ("body", "after"),
    [
        (
            '    if hasattr(model, "module"):\n        save(model.module)\n',
            '    if isinstance(model, FSDPModule) or hasattr(model, "module"):\n        save(model)\n',
        ),
        (
            '    assert hasattr(model, "module")\n',
            '    assert isinstance(model, FSDPModule) or hasattr(model, "module")\n',
        ),
        (
            '    if not hasattr(model, "module"):\n        raise ValueError\n',
            '    if not (isinstance(model, FSDPModule) or hasattr(model, "module")):\n        raise ValueError\n',
        ),
        (
            '    wrapped = hasattr(model, "module")\n    return wrapped\n',
            '    wrapped = isinstance(model, FSDPModule) or hasattr(model, "module")\n    return wrapped\n',
        ),
        (
            '    return model.module.a if hasattr(model, "module") else None\n',
            '    return model.a if isinstance(model, FSDPModule) or hasattr(model, "module") else None\n',
        ),
        (
            '    return getattr(model, "module", None)\n',
            '    return getattr(model, "module", model if isinstance(model, FSDPModule) else None)\n',
        ),
        ('    return getattr(model, "module").a\n', '    return getattr(model, "module", model).a\n'),
    ],
)
def test_a_sharded_model_is_counted_in(body: str, after: str) -> None:
    source = f"{HEAD}\n\ndef use(net):\n    model = FSDP(net)\n{body}"
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert after in result.source.decode()
    again = rewrite(result.source)
    assert isinstance(again, Unchanged) or again.source == result.source


@pytest.mark.parametrize(
    "body",
    [
        '    model = model.module if hasattr(model, "module") else model\n    return model.a\n',
        '    if hasattr(model, "module"):\n        model = model.module\n    return model.a\n',
        '    if hasattr(model, "module"):\n        return model.module.a\n    return model.a\n',
        '    inner = model\n    if hasattr(model, "module"):\n        inner = model.module\n    return inner\n',
        '    if hasattr(model, "module"):\n        a = model.module.a\n    else:\n        a = model.a\n    return a\n',
        '    return getattr(model, "module", model)\n',
        '    return getattr(model, "module", None) or model\n',
        '    while hasattr(model, "module"):\n        model = model.module\n    return model\n',
        '    while True:\n        if not hasattr(model, "module"):\n            break\n        model = model.module\n',
        '    inner = getattr(model, "module", None)\n    return use(inner) if inner is not None else model\n',
        '    if hasattr(model, "module"):\n        return use(model.module)\n    return model\n',
        '    return hasattr(model, "modules")\n',
    ],
)
def test_what_leads_to_the_same_is_left(body: str) -> None:
    assert said(f"def use(model):\n{body}", main=MAIN) == []


def test_a_model_is_followed_over_files_and_owners() -> None:
    body = '    if hasattr(owner.net, "module"):\n        print(owner.net.module)\n'
    owner = "class Owner:\n    def __init__(self, n):\n        self.net = FSDP(n)\n"
    main = f"{HEAD}from example import use\n{owner}use(Owner(n))\n"
    assert said(f"def use(owner):\n{body}", main=main) == [(2, "review")]
    assert said('def use(model):\n    return bool(getattr(model, "module", None))\n', main=MAIN) == [(2, "review")]
    assert said(f"def use(owner):\n{body}") == []


def test_a_model_with_a_part_of_that_name_is_left_to_a_person() -> None:
    body = '    if hasattr(model, "module"):\n        print(model.module)\n'
    part = "class Net(Module):\n    def __init__(self):\n        self.module = Linear()\n"
    assert said(f"def use(model):\n{body}", main=MAIN, net=part) == [(2, "manual")]


def test_what_asks_for_the_class_already_is_left() -> None:
    body = '    if isinstance(model, FSDP) or hasattr(model, "module"):\n        print(model.module)\n'
    assert said(f"{HEAD}def use(model):\n{body}", main=MAIN) == []
