"""Rule FSDP236: methods of a model that are called on FSDP1's class."""

from __future__ import annotations

import inspect

import pytest
from torch.distributed.fsdp import FullyShardedDataParallel

from fsdp_rules.fsdp1.methods import METHODS
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import check_rewrites, findings, rewrite

HEAD = """from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def run(net, x, fn):
    model = FSDP(net)
    loss = model(x).sum()
    """
#: On the model, on the class.
CALLS = {
    "train": ("model.train()", "FSDP.train(model)"),
    "argument": ("model.train(False)", "FSDP.train(model, False)"),
    "keyword": ("model.zero_grad(set_to_none=False)", "FSDP.zero_grad(model, set_to_none=False)"),
    "lines": (
        "model.to(\n        device=x.device,\n    )",
        "FSDP.to(\n        model,\n        device=x.device,\n    )",
    ),
    "one line each": ("model.eval()", "FSDP.eval(\n        model,\n    )"),
    "clip": ("norm = model.clip_grad_norm_(1.0)", "norm = FSDP.clip_grad_norm_(model, 1.0)"),
    "sync": ("with model.no_sync():\n        loss.backward()", "with FSDP.no_sync(model):\n        loss.backward()"),
    "forward": ("model.forward(x)", "FSDP.forward(model, x)"),
    "call": ("model(x)", "FSDP.__call__(model, x)"),
    "property": ("print(model.module.head)", "print(FSDP.module.fget(model).head)"),
    "state": ("print(model.state_dict())", "print(FSDP.state_dict(model))"),
    "apply": ("model.apply(fn)", "FSDP.apply(model, fn)"),
    "names": (
        "for name, p in model.named_parameters():\n        print(name)",
        "for name, p in FSDP.named_parameters(model):\n        print(name)",
    ),
    "hook": ("model.register_comm_hook(None, hook=fn)", "FSDP.register_comm_hook(model, None, hook=fn)"),
    "asked for": ("model.train()", 'getattr(FSDP, "train")(model)'),
}


@pytest.mark.parametrize("shape", CALLS)
@pytest.mark.parametrize("to", ["native", "shim"])
def test_a_call_on_the_class_is_one_on_the_model(shape: str, to: str) -> None:
    on_model, on_class = CALLS[shape]
    settings = Settings(to=to)
    expected, found = rewrite(HEAD + on_model + "\n", settings), rewrite(HEAD + on_class + "\n", settings)
    assert isinstance(expected, Changed)
    assert isinstance(found, Changed)
    has_both = to == "shim" and shape in ("clip", "sync", "hook")
    shim = expected.source.replace(on_model.encode(), on_class.encode())
    assert found.source == (shim if has_both else expected.source)
    said = {(entry.rule, entry.level, entry.line) for entry in found.findings} - {
        (entry.rule, entry.level, entry.line) for entry in expected.findings
    }
    assert has_both or ("FSDP236", "safe", 7) in {(rule, level.value, line) for rule, level, line in said}


def test_names_of_the_class() -> None:
    before = """
        import torch.distributed.fsdp as fsdp

        def run(net):
            model = fsdp.FullyShardedDataParallel(net)
            fsdp.FullyShardedDataParallel.train(model)
            return model
        """
    result = rewrite(before)
    assert isinstance(result, Changed)
    assert b"model.train()" in result.source
    assert b"FullyShardedDataParallel" not in result.source


@pytest.mark.parametrize(
    "line",
    [
        "step = FSDP.no_sync",
        "FSDP.no_sync(*models)",
        "FSDP.no_sync((model))",
        "FSDP.no_sync(model)  # fsdp-migrate: ignore[FSDP236]",
        "FSDP._reset(model)",
        "FSDP.no_sync(self=model)",
    ],
)
def test_what_is_no_plain_call_is_manual(line: str) -> None:
    source = HEAD + line + "\n"
    found = findings(source)
    assert "FSDP901" in {entry.rule for entry in found}
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert line.encode() in result.source


def test_a_subclass_calls_its_base() -> None:
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        class Own(FSDP):
            def forward(self, x):
                return FSDP.forward(self, x)
        """
    result = rewrite(source)
    assert not isinstance(result, Changed) or b"FSDP.forward(self, x)" in result.source


def test_another_class_of_the_name() -> None:
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def run(net, FSDP):
            FSDP.train(net)

        def wrap(net):
            return FSDP(net)
        """
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b"FSDP.train(net)" in result.source


def test_a_rule_that_is_off() -> None:
    source = HEAD + "FSDP.train(model)\n"
    result = rewrite(source, Settings(ignore=("FSDP236",)))
    assert isinstance(result, Changed)
    assert b"FSDP.train(model)" in result.source


def test_a_value_is_told_apart() -> None:
    """What is advised for a method, for a static method, and for the class."""
    cases = {
        "step = FSDP.no_sync": "call no_sync on the model itself where this value is used, and run this tool again",
        "step = FSDP.optim_state_dict": "call FSDP.optim_state_dict(...) itself where this value is used, and run this "
        "tool again",
        "step = {1: FSDP}": "call fully_shard(module, ...) where this value is used",
    }
    for line, advice in cases.items():
        (found,) = [entry.advice for entry in findings(HEAD + line + "\n") if entry.rule == "FSDP901"]
        assert found.startswith(advice)


def test_a_second_run() -> None:
    before = HEAD + "FSDP.train(model)\n"
    result = rewrite(before)
    assert isinstance(result, Changed)
    check_rewrites(before, result.source.decode())


def test_the_methods_are_those_of_torch() -> None:
    """Of torch's class as it is here; older and newer ones have one or two others."""
    own = {
        name
        for name in dir(FullyShardedDataParallel)
        if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(FullyShardedDataParallel, name))
    }
    statics = {
        name
        for name in dir(FullyShardedDataParallel)
        if isinstance(inspect.getattr_static(FullyShardedDataParallel, name), staticmethod | classmethod)
    }
    assert not METHODS & statics
    assert own - METHODS == set()
