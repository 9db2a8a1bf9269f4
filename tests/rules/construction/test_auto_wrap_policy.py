"""FSDP103: policies that are tests of a module."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.construction.helpers import IMPORTS, is_native, wrapped
from tests.rules.helpers import findings, rewrite, rewrite_tree

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


@pytest.mark.parametrize(
    ("classes", "given", "test"),
    [
        ("{type(model.blocks[-1])}", "type(model.blocks[-1])", "isinstance(module, unit_classes) and"),
        (
            "[named(model, one) for one in args.names]",
            "[named(model, one) for one in args.names]",
            "tuple(unit_classes)",
        ),
        ("{Block, model.head.__class__}", "model.head.__class__", "isinstance(module, (Block, unit_classes)) and"),
    ],
)
def test_classes_that_the_model_is_asked_for_are_computed_before_it_is_sharded(
    classes: str, given: str, test: str
) -> None:
    text = wrapped(f"auto_wrap_policy={CLASSES.replace('{Block}', classes)}")
    assert f"unit_classes = {given}\n    for module in" in text and test in text
    text = wrapped("auto_wrap_policy=policy", f"policy = {CLASSES.replace('{Block}', classes)} if args.wrap else None")
    assert f"(lambda module, unit_classes={given}: isinstance(" in text


def test_chosen_at_run_time() -> None:
    text = wrapped("auto_wrap_policy=policy", f"policy = {CLASSES} if args.wrap else None")
    assert is_native(text) and "module is not model and policy(module):" in text
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
    assert is_native(text) and "for module in units_of(model, args.policy" in " ".join(text.split()).replace("( ", "(")


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


UNITS = '{"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}'


CUSTOM = "from torch.distributed.fsdp.wrap import CustomPolicy"


def custom(arguments: str, above: str = "", **others: str) -> str:
    return wrapped(arguments, f"{CUSTOM}\n{textwrap.dedent(above).strip()}", **others)


def test_a_custom_policy_that_only_tests_is_a_test() -> None:
    text = custom("auto_wrap_policy=CustomPolicy(lambda m: isinstance(m, Block))")
    assert is_native(text) and "if isinstance(m, Block) and m is not model:" in text


def test_units_get_their_own_arguments() -> None:
    text = custom(
        "auto_wrap_policy=CustomPolicy(own), device_id=torch.device('cpu')",
        f"""
        def own(module):
            if isinstance(module, Block):
                return {UNITS}
            return module in args.heads
        """,
    )
    assert is_native(text)
    assert 'return {"reshard_after_forward": False}' in text
    assert "return {} if module in args.heads else None" in text
    assert "fully_shard(submodule, mesh=mesh, **unit_kwargs)" in text


def test_the_arguments_of_a_unit_replace_those_of_the_model() -> None:
    arguments = "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_mesh=args.mesh, mixed_precision=half"
    above = "half = MixedPrecision(param_dtype=torch.bfloat16)"
    policy = f"CustomPolicy(lambda m: {UNITS.replace('SHARD_GRAD_OP', 'FULL_SHARD')} if m in args.parts else False)"
    text = custom(f"auto_wrap_policy={policy}, {arguments}", above)
    assert is_native(text)
    assert 'unit_kwargs = {"reshard_after_forward": True} if m in args.parts else None' in text
    assert "fully_shard(m, mp_policy=unit_mp_policy, **{**fsdp_kwargs, **unit_kwargs})" in text


def test_ignored_parts_are_no_units() -> None:
    policy = f"CustomPolicy(lambda m: isinstance(m, Block) and {UNITS})"
    source = f"{IMPORTS}{CUSTOM}\nmodel = FSDP(model, auto_wrap_policy={policy}, ignored_modules=[args.frozen])\n"
    result = rewrite(source, Settings(torch=(2, 7)))
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert is_native(text) and "if unit_kwargs is not None and m is not model and m not in ignored:" in text


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("return args.choose(module)", "own returns args.choose(module), which is only known at run time"),
        ("return {'device_mesh': args.mesh}", "a unit has its own device_mesh"),
        ("return {'sharding_strategy': args.strategy}", "sharding_strategy=args.strategy of a unit is only known at"),
        ("return {'sharding_strategy': ShardingStrategy.NO_SHARD}", "a unit has a strategy that needs a mesh other"),
        (
            "return {'mixed_precision': MixedPrecision(torch.half, buffer_dtype=torch.half)}",
            "a unit has its own buffer_dtype",
        ),
        (
            "args.seen.append(module)\n    return len(args.seen) < 3",
            "own has side effects, so the order of its calls may matter",
        ),
        (
            "kwargs = {'forward_prefetch': True}\n    args.show(kwargs)\n    return kwargs",
            "own has side effects, so the order of its calls may matter",
        ),
        (
            "kwargs = {'forward_prefetch': True}\n    kwargs |= args.more\n    return kwargs",
            "own returns kwargs, which is only known at run time",
        ),
    ],
)
def test_what_a_unit_cannot_have_is_the_reason_for_the_helper(function: str, reason: str) -> None:
    above = f"def own(module):\n    {function}\n"
    body = textwrap.indent(f"{above}\n{CALL}\nreturn model\n", "    ")
    source = f"{IMPORTS}{CUSTOM}\n\ndef build(model, args):\n{body}"
    (found,) = [one for one in findings(source) if one.rule == "FSDP101"]
    assert reason in found.message


CALL = "model = FSDP(model, auto_wrap_policy=CustomPolicy(own))"
CHOICE = f"""
from torch.distributed.fsdp import ShardingStrategy

def own(module) -> bool | dict:
    if isinstance(module, Block):
        return {UNITS}
    return False
"""


def test_a_function_of_another_file_changes_with_its_wraps() -> None:
    files = {"conf.py": CHOICE, "example.py": f"from conf import own\n{IMPORTS}{CUSTOM}\n{CALL}\n"}
    after = rewrite_tree({path: text.encode() for path, text in files.items()})
    texts = {path: result.source.decode() for path, result in after.items() if isinstance(result, Changed)}
    assert is_native(texts["example.py"]) and "unit_kwargs = own(module)" in texts["example.py"]
    assert 'return {"reshard_after_forward": False}' in texts["conf.py"]
    assert "def own(module) -> typing.Optional[dict]:" in texts["conf.py"]
    assert "return None" in texts["conf.py"]


def test_a_function_that_is_called_elsewhere_keeps_its_values() -> None:
    text = custom("auto_wrap_policy=CustomPolicy(own)", "from conf import own", conf=f"{CHOICE}\nprint(own(None))\n")
    assert "fsdp_compat.shard(" in text


@pytest.mark.parametrize("conf", ["", CHOICE])
def test_a_custom_policy_that_a_function_returns_is_not_asked(conf: str) -> None:
    returned = f"{CUSTOM}\n\n\ndef get_policy():\n    return CustomPolicy(args_choose)\n"
    source = f"{returned}{IMPORTS}\nmodel = FSDP(model, auto_wrap_policy=get_policy())\n"
    if conf:
        source = f"from conf import get_policy\n{IMPORTS}\nmodel = FSDP(model, auto_wrap_policy=get_policy())\n"
    result = rewrite(source, **({"conf": f"{conf}{returned}"} if conf else {}))
    assert isinstance(result, Changed)
    assert "fsdp_compat.shard(" in result.source.decode()
