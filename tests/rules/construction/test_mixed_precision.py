"""FSDP104: the dtypes of computation, reduction and buffers."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.construction.helpers import IMPORTS, is_native, wrapped
from tests.rules.helpers import rewrite

BF16 = "MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)"
FP16 = "MixedPrecision(param_dtype=torch.float16, reduce_dtype=torch.float16, buffer_dtype=torch.float16)"
BLOCKS = "auto_wrap_policy=ModuleWrapPolicy({Block})"


def test_written_at_the_call() -> None:
    text = wrapped(f"mixed_precision={BF16}")
    assert is_native(text) and "buffer.data = buffer.to(torch.bfloat16)" in text


def test_units_do_not_cast_their_inputs() -> None:
    text = wrapped(f"mixed_precision={BF16}, {BLOCKS}")
    assert "unit_mp_policy = dataclasses.replace(mp_policy, cast_forward_inputs=False)\n    for module" in text


def test_units_that_cast_share_the_policy() -> None:
    text = wrapped(f"mixed_precision={BF16[:-1]}, cast_forward_inputs=True), {BLOCKS}")
    assert "dataclasses.replace" not in text and "fully_shard(module, mp_policy=mp_policy)" in text


def test_one_of_several_or_none() -> None:
    above = f"""
        if args.bf16:
            policy = {BF16}
        elif args.fp16:
            policy = {FP16}
        else:
            policy = None
    """
    text = wrapped("mixed_precision=policy", above)
    assert is_native(text) and "policy = MixedPrecisionPolicy()" in text
    assert "if policy.param_dtype is not None:\n        for buffer" in text


def test_fields_that_are_read_elsewhere() -> None:
    text = wrapped(
        "mixed_precision=policy",
        f"policy = {BF16}\nargs.dtype = policy.param_dtype\nargs.buffers = policy.buffer_dtype",
    )
    assert is_native(text) and "args.buffers = policy.param_dtype" in text


@pytest.mark.parametrize(
    ("arguments", "above"),
    [
        (f"mixed_precision={BF16[:-1]}, keep_low_precision_grads=True)", ""),
        (f"mixed_precision={BF16[:-1]}, cast_forward_inputs=args.cast)", ""),
        (
            "mixed_precision=policy",
            f"policy = {BF16} if args.bf16 else {FP16.replace('buffer_dtype=torch.float16', 'buffer_dtype=args.b')}",
        ),
    ],
)
def test_what_has_no_native_form_is_left_to_the_helper(arguments: str, above: str) -> None:
    assert "fsdp_compat.shard(" in wrapped(arguments, above)


def test_what_another_function_may_have_changed_is_read_where_the_model_is_wrapped() -> None:
    text = wrapped("mixed_precision=policy", f"policy = {BF16}\nargs.keep(policy)")
    assert "param_dtype=policy.param_dtype" in text and "policy = MixedPrecision(" in text


def test_batchnorm_in_a_file_that_the_model_comes_from() -> None:
    net = "import torch\n\nclass Net(torch.nn.Module):\n    norm = torch.nn.BatchNorm1d\n"
    text = wrapped(f"mixed_precision={BF16}", "from net import Net\nmodel = Net()", net=net)
    assert "fsdp_compat.shard(" in text
    assert is_native(wrapped(f"mixed_precision={BF16}", "import net", net=net)), "nothing says that this model has it"


def test_a_precision_from_elsewhere_is_read_field_by_field() -> None:
    text = wrapped(f"mixed_precision=args.policy, {BLOCKS}")
    assert is_native(text) and "buffer.data = buffer.to(args.policy.buffer_dtype)" in text
    casting = wrapped(
        f"mixed_precision=args.policy, {BLOCKS}",
        "import other",
        other=f"inner = {BF16[:-1]}, cast_forward_inputs=True)\n",
    )
    assert is_native(casting) and "mp_policy, unit_mp_policy, buffer_dtype = mp_policies(args.policy)" in casting


def test_a_precision_that_is_computed_is_asked_for_once() -> None:
    text = wrapped("mixed_precision=args.policy() if args.low else None")
    assert is_native(text) and text.count("args.policy()") == 1


def test_more_lines_than_a_call_is_worth_are_left_to_the_helper() -> None:
    arguments = "mixed_precision=args.policy, auto_wrap_policy=args.wrap, sharding_strategy=args.strategy"
    text = wrapped(arguments, "import other", other="flags = ['nonwrapped_numel', 'cast_forward_inputs']\n")
    assert "fsdp_compat.shard(" in text and "def " not in text.partition("def build")[2]


SHARED = """
bf16 = MixedPrecision(param_dtype=torch.bfloat16)

def build(model):
    model = FSDP(model, mixed_precision=bf16)
    return model

def build_other(model, kwargs):
    return FSDP(model, mixed_precision=bf16, **kwargs)
"""


def test_a_constant_that_several_functions_wrap_with_changes_with_all_of_them() -> None:
    text = text_of(SHARED.replace(", **kwargs", ""))
    assert is_native(text) and text.count("fully_shard(model, mp_policy=bf16)") == 2
    assert "bf16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)" in text


def test_a_constant_that_a_helper_is_given_as_well_keeps_fsdp1_s_form() -> None:
    text = text_of(SHARED)
    assert "bf16 = MixedPrecision(param_dtype=torch.bfloat16)" in text
    assert "param_dtype=bf16.param_dtype" in text and "buffer.to(bf16.buffer_dtype)" in text
    assert "fsdp_compat.shard(model, mixed_precision=bf16, **kwargs)" in text


def test_a_constant_that_another_function_reads_keeps_fsdp1_s_form() -> None:
    text = text_of(SHARED.replace(", **kwargs", "") + "\ndef show():\n    print(bf16.buffer_dtype)\n")
    assert "bf16 = MixedPrecision(param_dtype=torch.bfloat16)" in text
    assert text.count("fsdp_compat.shard(model, mixed_precision=bf16)") == 2


def text_of(source: str) -> str:
    result = rewrite(f"{IMPORTS}{source}")
    assert isinstance(result, Changed)
    return result.source.decode()
