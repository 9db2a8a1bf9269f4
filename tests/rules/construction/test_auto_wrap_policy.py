"""FSDP103: policies that are tests of a module."""

from __future__ import annotations

import pytest

from tests.rules.construction.helpers import is_native, wrapped

CLASSES = "functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})"
LAMBDA = "functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in model.blocks)"


#: A policy of the project that is given the number of parameters.
COUNTS = "def own(module, recurse, nonwrapped_numel):\n    return recurse or nonwrapped_numel > 9\n"


@pytest.mark.parametrize("policy", ["None", "None if args.wrap else None"])
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


def test_policies_that_count_get_the_function_that_counts() -> None:
    text = wrapped("auto_wrap_policy=size_based_auto_wrap_policy")
    assert is_native(text) and "for module in units_by_size(model, int(1e8))[0]:" in text
    above = f"""
        if args.sized:
            policy = functools.partial(size_based_auto_wrap_policy, min_num_params=args.least)
        else:
            policy = {CLASSES}
    """
    text = wrapped("auto_wrap_policy=policy", above)
    assert is_native(text) and "policy = units_by_size(model, args.least)[0].__contains__" in text


@pytest.mark.parametrize("policy", ["args.policy", f"args.policy if args.own else {CLASSES}"])
def test_policies_from_elsewhere_are_asked(policy: str) -> None:
    text = wrapped(f"auto_wrap_policy={policy}", "import other", other=COUNTS)
    assert is_native(text) and "for module in units_of(model, args.policy" in text


def test_policies_that_count_nothing_are_asked_about_each_module_alone() -> None:
    text = wrapped("auto_wrap_policy=args.policy")
    assert is_native(text) and "args.policy(module, recurse=False, nonwrapped_numel=0)" in text


def test_the_function_is_defined_once() -> None:
    arguments = "auto_wrap_policy=args.policy)\n    other = FSDP(args.other, auto_wrap_policy=args.policy"
    text = wrapped(arguments, "import other", other=COUNTS)
    assert is_native(text) and text.count("def units_of(") == 1


def test_policies_with_arguments_of_each_unit_are_left_to_the_helper() -> None:
    assert "fsdp_compat.shard(" in wrapped("auto_wrap_policy=CustomPolicy(args.choose)")


def test_the_predicate_of_a_chosen_policy_is_the_function_itself() -> None:
    above = """
        if args.units:
            policy = functools.partial(lambda_auto_wrap_policy, lambda_fn=lambda m: m in model.blocks)
        elif args.own:
            policy = functools.partial(lambda_auto_wrap_policy, lambda_fn=args_picks)
        else:
            policy = None
    """
    text = wrapped("auto_wrap_policy=policy, device_id=0", above)
    assert is_native(text)
    assert "policy = lambda m: m in model.blocks\n" in text
    assert "policy = args_picks\n" in text
