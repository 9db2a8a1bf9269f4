"""Units that have arguments of their own: whether fully_shard can be given them, and the loop that gives them."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.construction._plan.policy_test import of_others
from fsdp_rules.construction._plan.policy_text import at_margin
from fsdp_rules.construction._plan.strategies import known_strategy
from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import call_text, indent
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.strategy_names import HYBRID


def beyond_native(plan: ShardPlan, file: File) -> Iterator[str]:
    """Why the arguments of the units do not go with those of the model."""
    if plan.each is None:
        return
    contract = plan.each[1]
    if plan.on_meta:
        yield "units have their own arguments, and the model may be on the meta device"
    if plan.spread is not None:
        yield "units have their own arguments, and the model's arguments come from a dictionary"
    whole = known_strategy(file.value(plan.arguments.get("sharding_strategy", cst.Name("None"))), file)
    alike = HYBRID if whole in HYBRID else {"FULL_SHARD", "SHARD_GRAD_OP"}
    if contract.strategies and not (whole in alike and contract.strategies <= alike):
        yield "a unit has a strategy that needs a mesh other than the model's"
    if "mp_policy" in contract.keys and contract.buffers_like != _buffers(plan, file):
        yield "a unit has its own buffer_dtype"


def _buffers(plan: ShardPlan, file: File) -> str | None:
    """The dtype that the model's buffers are cast to, "" for none, None where it is not known."""
    if plan.precision is None:
        return ""
    if plan.precision.buffers_like is not None or plan.precision.value is not None:
        return None
    dtype = plan.precision.fields.get("buffer_dtype")
    return "" if dtype is None or is_none(dtype) else file.resolved(dtype) or file.code(dtype)


def loop_of_each(
    plan: ShardPlan, root: str, arguments: list[str], shared: dict[str, str], never: str | None, file: File, code: Code
) -> list[str]:
    """The loop over the modules of ``root`` that shards each unit with what its function gives, else ``arguments``.

    A dictionary among the ``arguments`` holds what is ``shared``; modules in ``never`` are no units.
    """
    assert plan.each is not None
    function, contract = plan.each
    unit = plan.unit or file.fresh(plan.module, "module", "submodule", "unit")
    own = file.fresh(plan.module, "unit_kwargs", "kwargs_of_unit", "own_fsdp_kwargs")
    keywords: list[str] = []
    replaced: list[str] = []
    for argument in arguments:
        name, _, text = argument.partition("=")
        if argument.startswith("**"):
            (replaced if contract.keys.intersection(shared) else keywords).append(argument)
        elif name in contract.keys:
            replaced.append(f'"{name}": {text}')
        else:
            keywords.append(argument)
    given = f"**{{{', '.join([*replaced, f'**{own}'])}}}" if replaced else f"**{own}"
    call = call_text(file.ref("torch.distributed.fsdp.fully_shard"), [unit, *keywords, given])
    besides = f" and {unit} not in {never}" if never is not None else ""
    asked = at_margin(_asked(function, unit, file, code), 4)
    return [
        f"for {unit} in reversed(list({root}.modules())):",
        indent(f"{own} = {asked}"),
        f"    if {own} is not None and {unit} is not {root}{besides}:",
        indent(indent(call)),
    ]


def _asked(function: cst.BaseExpression, unit: str, file: File, code: Code) -> str:
    """What ``function`` gives ``unit``."""
    if not isinstance(function, cst.Lambda):
        return f"{code(function)}({unit})"
    text = code(function.body)
    return f"({text})" if "\n" in text else text


def loop_of_units(
    plan: ShardPlan, root: str, arguments: list[str], never: str | None, file: File, code: Code
) -> list[str]:
    """The loop over the modules of ``root`` that shards each unit with ``arguments``; modules in ``never`` are none."""
    assert plan.selector is not None
    unit = plan.unit or file.fresh(plan.module, "module", "submodule", "unit")
    call = call_text(file.ref("torch.distributed.fsdp.fully_shard"), [unit, *arguments])
    if plan.units is not None:
        listed = plan.units.text(root, code)
        return [f"for {unit} in {listed}:", f"    if {unit} is not {root}:", indent(indent(call))]
    test = plan.selector.format(module=unit, **{f"n{i}": code(n) for i, n in enumerate(plan.selector_nodes)})
    if not plan.below_root:
        test = of_others(test, unit, root)
    beside = f" and {unit} not in {never}" if never is not None else ""
    return [
        f"for {unit} in reversed(list({root}.modules())):",
        f"    if {test}{beside}:",
        indent(indent(call)),
    ]
