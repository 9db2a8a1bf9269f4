"""FSDP103: policies that are tests of a module."""

from __future__ import annotations

import pytest

from tests.rules.construction.helpers import is_native, wrapped

CLASSES = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})"
LAMBDA = "functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in model.blocks)"


@pytest.mark.parametrize("policy", ["None", "args.policy if False else None"])
def test_no_policy(policy: str) -> None:
    assert ("for module" in wrapped(f"auto_wrap_policy={policy}")) is False


@pytest.mark.parametrize(
    ("policy", "test"),
    [
        (CLASSES, "isinstance(module, Block) and module is not model:"),
        ("ModuleWrapPolicy({Block, Head})", "isinstance(module, (Block, Head)) and module is not model:"),
        (
            CLASSES.replace("{Block}", "args.classes"),
            "isinstance(module, tuple(args.classes)) and",
        ),
        (LAMBDA, "if m in model.blocks:"),
        (f"functools.partial(_or_policy, policies=[{CLASSES}, {LAMBDA}])", "(isinstance(module, Block) or (lambda m:"),
    ],
)
def test_known(policy: str, test: str) -> None:
    text = wrapped(f"auto_wrap_policy={policy}")
    assert is_native(text) and test in text


def test_chosen_at_run_time() -> None:
    text = wrapped("auto_wrap_policy=policy", f"policy = {CLASSES} if args.wrap else None")
    assert is_native(text) and "policy(module) and module is not model" in text
    assert "policy = (lambda module: isinstance(module, Block)) if args.wrap else (lambda module: False)" in text


@pytest.mark.parametrize(
    "policy", ["size_based_auto_wrap_policy", "args.policy", f"args.policy if args.own else {CLASSES}"]
)
def test_what_counts_or_is_not_seen_is_left_to_the_helper(policy: str) -> None:
    assert "fsdp_compat.shard(" in wrapped(f"auto_wrap_policy={policy}")
