"""Rule FSDP242: torch.autocast around a sharded model."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_noop, findings, rewrite

HEAD = """
import functools
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, batch):
    model = FSDP(net)
"""


def levels(source: str, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, **others) if found.rule == "FSDP242"]


def output(source: str) -> str:
    done = rewrite(source)
    assert isinstance(done, Changed)
    return done.source.decode()


def test_noop_without_fsdp() -> None:
    check_noop("import torch\n\ndef run(model, x):\n    with torch.autocast('cuda'):\n        return model(x)\n")


@pytest.mark.parametrize(
    ("region", "written"),
    [
        ('torch.autocast("cuda")', 'torch.autocast("cuda", cache_enabled=False)'),
        ("torch.cuda.amp.autocast()", "torch.cuda.amp.autocast(cache_enabled=False)"),
        ('torch.amp.autocast("cuda", None, True, True)', 'torch.amp.autocast("cuda", None, True, False)'),
        ("torch.cuda.amp.autocast(cache_enabled=True)", "torch.cuda.amp.autocast(cache_enabled=False)"),
    ],
)
def test_the_cache_is_turned_off(region: str, written: str) -> None:
    source = f"{HEAD}    with {region}:\n        return model(batch)\n"
    assert levels(source) == ["safe"]
    assert f"with {written}:" in output(source)


@pytest.mark.parametrize(
    "region",
    [
        'torch.autocast("cuda", enabled=False)',
        'torch.autocast("cuda", cache_enabled=False)',
        'torch.autocast(device_type="cuda", dtype=torch.float32)',
        'torch.autocast("cuda", torch.float)',
    ],
)
def test_what_caches_nothing_stays(region: str) -> None:
    assert levels(f"{HEAD}    with {region}:\n        return model(batch)\n") == []


def test_a_region_that_is_entered_elsewhere_is_review() -> None:
    body = '    half = torch.autocast("cuda")\n    with half:\n        return model(batch)\n'
    assert levels(HEAD + body) == ["review"]
    assert levels(HEAD + body.replace('torch.autocast("cuda")', 'functools.partial(torch.autocast, "cuda")')) == [
        "review"
    ]


def test_a_value_is_manual() -> None:
    assert levels(f"{HEAD}    return evaluate(model, torch.autocast)\n") == ["manual"]
    assert levels(f"{HEAD}    return isinstance(batch, torch.autocast)\n") == []


@pytest.mark.parametrize(
    ("value", "region"),
    [
        ("torch.cuda.amp.autocast if half else nullcontext", "region()"),
        ("nullcontext if half else torch.cuda.amp.autocast", "region()"),
    ],
)
def test_a_value_that_is_only_called_is_a_partial(value: str, region: str) -> None:
    body = f"    region = {value}\n    with {region}:\n        return model(batch)\n"
    source = f"from contextlib import nullcontext\n{HEAD.replace('batch', 'batch, half')}{body}"
    partial = value.replace(
        "torch.cuda.amp.autocast", "functools.partial(torch.cuda.amp.autocast, cache_enabled=False)"
    )
    assert levels(source) == ["review"]
    assert body.replace(value, partial) in output(source)
    assert levels(source.replace(f"with {region}", f"with {region}, use(region)")) == ["manual"]


def test_a_name_of_the_class_is_given_the_argument_where_it_is_called() -> None:
    source = f"{HEAD}    region = torch.autocast\n    with region('cuda'):\n        return model(batch)\n"
    assert levels(source) == ["safe"]
    assert "with region('cuda', cache_enabled=False):" in output(source)


@pytest.mark.parametrize("comment", ["", "  # half"])
def test_an_argument_gets_its_line_where_each_has_one(comment: str) -> None:
    lines = f'torch.autocast(\n        "cuda",\n        enabled=batch,{comment}\n    ):\n        return model(batch)\n'
    done = output(f"{HEAD}    with {lines}")
    assert lines.replace(f",{comment}\n    )", f",{comment}\n        cache_enabled=False,\n    )") in done


def test_a_file_that_is_given_the_model() -> None:
    engine = "import torch\n\ndef step(model, batch):\n    with torch.autocast('cuda'):\n        return model(batch)\n"
    caller = HEAD.replace("import torch\n", "import torch\nfrom example import step\n", 1) + "    step(model, batch)\n"
    assert levels(engine, main=caller) == ["safe"]
    assert levels(engine, main=caller.replace("FSDP(net)", "net").replace("step(", "print(")) == []


@pytest.mark.parametrize(
    ("wrapped", "runs", "cached"),
    [
        ('FSDP(net) if args.mode == "fsdp" else DDP(net)', "model(batch)", "not isinstance(model, FSDPModule)"),
        ('FSDP(net) if args.mode == "fsdp" else DDP(net)', "run(model, batch)", "not isinstance(model, FSDPModule)"),
        ("FSDP(net)", "model(batch)", "False"),
    ],
)
def test_a_model_in_another_wrapper_keeps_its_cache(wrapped: str, runs: str, cached: str) -> None:
    source = f"""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP

def run(model, batch):
    return model(batch)

def step(model, batch):
    with torch.autocast("cuda"):
        return {runs}

def train(args, net, batch):
    model = {wrapped}
    step(model, batch)
    DDP(args.other)
"""
    assert f'    with torch.autocast("cuda", cache_enabled={cached}):' in output(source)
