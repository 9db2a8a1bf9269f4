"""Rule FSDP241: questions for names that only FSDP2's modules have."""

from __future__ import annotations

import pytest
from torch import nn
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

from fsdp_rules.fsdp1.added_names import added_names
from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

HEAD = "import contextlib\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
TRAIN = f"{HEAD}def train(net, batch, args):\n    model = FSDP(net)\n"


def said(source: str, settings: Settings | None = None, **others: str) -> list[tuple[int, str]]:
    found = findings(source, settings, **others)
    return [(one.line, one.level.value) for one in found if one.rule == "FSDP241"]


def test_the_list_is_that_of_torch() -> None:
    own = set(dir(FSDPModule)) - set(dir(nn.Module)) - set(dir(FullyShardedDataParallel))
    assert own - {"_orig_cls_mro_index"} <= added_names()
    assert not added_names() & set(dir(nn.Module)) | added_names() & set(dir(FullyShardedDataParallel))


@pytest.mark.parametrize(
    "body",
    [
        '    if hasattr(model, "set_is_last_backward"):\n        model.set_is_last_backward(False)\n',
        '    stop = getattr(model, "set_requires_gradient_sync", None)\n    if stop:\n        stop(False)\n',
        "    try:\n        model.set_requires_gradient_sync(False)\n    except AttributeError:\n        pass\n",
        "    with contextlib.suppress(AttributeError, TypeError):\n        model.reshard()\n",
        '    for part in model.modules():\n        if hasattr(part, "unshard"):\n            part.unshard()\n',
        '    whole = not hasattr(type(model), "set_reshard_after_forward")\n    print(whole)\n',
        '    name = model.reshard() if hasattr(model, "reshard") else None\n',
    ],
)
@pytest.mark.parametrize("target", ["fsdp2", "shim"])
def test_a_way_that_was_dead_is_reported(body: str, target: str) -> None:
    settings = Settings(to="shim") if target == "shim" else Settings()
    assert [level for _, level in said(TRAIN + body, settings)] == ["manual"]


def test_both_ways_are_named() -> None:
    body = '    if not hasattr(model, "unshard"):\n        batch = batch + 1\n    else:\n        model.unshard()\n'
    (found,) = [one for one in findings(TRAIN + body) if one.rule == "FSDP241"]
    assert '"batch = batch + 1" ran, and now "model.unshard()" does' in found.message


def test_it_is_found_in_another_file() -> None:
    main = f"{HEAD}from example import step\n\nmodel = FSDP(net)\nstep(model, batch)\n"
    loop = (
        "def step(model, batch):\n    try:\n        model.set_requires_gradient_sync(False)\n"
        "    except (AttributeError, TypeError):\n        print('reduced')\n    model(batch).sum().backward()\n"
    )
    assert said(loop, main=main) == [(3, "manual")]


@pytest.mark.parametrize(
    "body",
    [
        '    if args.fsdp_version == 2 and hasattr(model, "reshard"):\n        model.reshard()\n',
        '    if args.fsdp2:\n        if hasattr(model, "reshard"):\n            model.reshard()\n',
        '    if hasattr(args, "reshard"):\n        print(args.reshard)\n',
        '    if hasattr(model, "no_grad_step"):\n        model.no_grad_step()\n',
        "    try:\n        model(batch)\n    except RuntimeError:\n        pass\n",
    ],
)
def test_what_asks_for_something_else_is_left_alone(body: str) -> None:
    assert said(TRAIN + body) == []


def test_a_model_that_is_not_wrapped_yet_is_left_alone() -> None:
    body = '    if hasattr(net, "reshard"):\n        net.reshard()\n    model = FSDP(net)\n'
    assert said(f"{HEAD}def train(net):\n{body}") == []


CLASS_TEST = """
import torch
import torch.distributed.fsdp
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def scaled(model, loss):
    {body}

def step(net, batch):
    model = {wrap}
    scaled(model, model(batch).sum()).backward()
    return model
"""


def of_class(body: str, wrap: str = "FSDP(net)", to: str = "native") -> list[str]:
    source = CLASS_TEST.format(body=body, wrap=wrap)
    return [found.level.value for found in findings(source, Settings(to=to)) if found.rule == "FSDP241"]


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    "body",
    [
        "return loss / 2 if isinstance(model, FSDPModule) else loss",
        "if not isinstance(model, (torch.distributed.fsdp.FSDPModule, str)):\n        return loss\n    return loss / 2",
        "is_new = issubclass(type(model), FSDPModule)\n    return loss / 2 if is_new else loss",
        "for p in model.modules():\n        if isinstance(p, FSDPModule):\n            loss /= 2\n    return loss",
    ],
)
def test_a_test_for_the_class_of_fsdp2_of_a_model_that_fsdp1_wraps(body: str, to: str) -> None:
    assert of_class(body, to=to) == ["manual"]
    # What is FSDP2's already is so before and after.
    assert of_class(body, "fully_shard(net)", to) == []


@pytest.mark.parametrize(
    "body",
    [
        "return loss / 2 if isinstance(model, (FSDP, FSDPModule)) else loss",
        "return loss / 2 if isinstance(model, FSDP) or isinstance(model, FSDPModule) else loss",
        "if isinstance(model, FSDP):\n        return loss\n    if isinstance(model, FSDPModule):\n        return loss",
        "return loss / 2 if isinstance(loss, FSDPModule) else loss",
    ],
)
def test_a_test_for_both_classes_is_no_question_of_fsdp2(body: str) -> None:
    assert of_class(body) == []
