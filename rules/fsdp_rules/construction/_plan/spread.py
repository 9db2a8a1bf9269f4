"""A call whose arguments come from a dictionary that another function returns, which is rewritten with the call."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.construction._plan.argument_dicts import DROPPED
from fsdp_rules.construction._plan.leaves import Leaf, is_printed, is_same
from fsdp_rules.construction._plan.plan import Device, Precision, ShardPlan
from fsdp_rules.construction._plan.slots import slot_of, unpacked
from fsdp_rules.file.expressions import brief, literal_text, only_key
from fsdp_rules.file.file import File
from fsdp_rules.project.configured import Contract

#: The name of the function that tests modules, and its key in the dictionary.
TEST = "should_shard"


def spread_of(call: cst.Call, file: File) -> Leaf | None:
    """The dictionary that ``call`` is given as ``**name``, where nothing else reads it and its definition changes.

    More arguments besides may be those alone that mean nothing to ``fully_shard``.
    """
    spread = [argument.value for argument in call.args if argument.star]
    others = {argument.keyword.value for argument in call.args if argument.keyword is not None} - {"module"}
    if len(spread) != 1 or not others <= DROPPED:
        return None
    if isinstance(spread[0], cst.Call):
        made_here = Leaf(spread[0], slot=slot_of(spread[0], file))
        known = made_here.contract(file)
        return made_here if known is not None and known.kind == "arguments" and known.converted else None
    if not isinstance(spread[0], cst.Name):
        return None
    leaf, made = _made(spread[0], call, file)
    contract = leaf.contract(file) if leaf is not None else None
    if leaf is None or made is None or contract is None or contract.kind != "arguments" or not contract.converted:
        return None
    first, last = file.span(made).line, file.span(file.statement(call)).line
    scope = file.scope(spread[0])
    later = [file.span(one).line for one in _whole(spread[0], call, file) if file.span(one).line > last]
    for use in file.uses(spread[0].value):
        line = file.span(use).line
        is_another = not is_same(use, scope, file) or line < first or (later and line >= min(later))
        if use is not spread[0] and use is not leaf.node and not is_another and not _is_kept(use, contract, file):
            return None
    return leaf


def _made(name: cst.Name, call: cst.Call, file: File) -> tuple[Leaf | None, cst.CSTNode | None]:
    """The value of ``name`` in ``call``, and the statement of its block that gives it, since keys are taken out."""
    statement = file.statement(call)
    above = [one for one in _whole(name, call, file) if file.span(one).line < file.span(statement).line]
    if not above:
        return None, None
    made = cst.ensure_type(above[-1], cst.Assign)
    taken_apart = unpacked(made, name.value, file)
    if taken_apart is not None:
        return Leaf(taken_apart[0], slot=taken_apart[1]), made
    slot = slot_of(made.value, file)
    return (Leaf(made.value, slot=slot), made) if slot is not None else (None, None)


def _whole(name: cst.Name, call: cst.Call, file: File) -> list[cst.Assign]:
    """The statements around ``call`` that give ``name`` a dictionary, where no others do."""
    bound = [entry.statement for entry in file.bindings.found.get((file.scope(name), name.value), ())]
    whole = [one for one in bound if isinstance(one, cst.Assign) and not _is_put(one, name.value)]
    kept = [one for one in bound if isinstance(one, cst.Assign) and _is_put(one, name.value)]
    here = file.block(file.statement(call))
    return whole if len(whole) + len(kept) == len(bound) and all(one in here for one in whole) else []


def _is_put(statement: cst.Assign, name: str) -> bool:
    targets = [entry.target for entry in statement.targets]
    return all(
        isinstance(one, cst.Subscript) and isinstance(one.value, cst.Name) and one.value.value == name
        for one in targets
    )


def _is_kept(use: cst.Name, contract: Contract, file: File) -> bool:
    """Whether ``use`` reads or replaces a policy that the dictionary still holds under its name, as it was."""
    parent = file.parent(use)
    if not isinstance(parent, cst.Subscript):
        return is_printed(use, file)
    if "auto_wrap_policy" not in contract.keys:
        return False
    return literal_text(only_key(parent)) == "auto_wrap_policy"


def plan_spread(call: cst.Call, leaf: Leaf, contract: Contract, plan: ShardPlan, file: File) -> None:
    """Plan a call that takes its arguments from the dictionary ``leaf``."""
    given = next(argument.value for argument in call.args if argument.star)
    plan.spread = file.code(given)
    if not isinstance(given, cst.Name):
        plan.spread = file.fresh(call, "given_kwargs", "sharding_kwargs", "shard_arguments")
        plan.taken_out.append(f"{plan.spread} = {file.code(given)}")
    plan.take(leaf)
    if "auto_wrap_policy" in contract.keys:
        policy = _taken_out("auto_wrap_policy", ("auto_wrap_policy", "wrap_policy"), plan, file)
        plan.selector = f"{policy} is not None and {policy}({{module}}, recurse=False, nonwrapped_numel=0)"
        plan.assumptions.append(f"assumes the auto_wrap_policy in {brief(plan.spread, 30)} counts no parameters")
    if TEST in contract.keys:
        plan.selector = _taken_out(TEST, (TEST, "is_unit"), plan, file) + "({module})"
    if "mp_policy" in contract.keys:
        variable = _taken_out("mp_policy", ("mp_policy", "mixed_precision_policy"), plan, file)
        casts = dict(zip(("cast_forward_inputs", "cast_root_forward_inputs"), contract.casts, strict=True))
        plan.precision = Precision(
            {key: cst.Name(str(value)) for key, value in casts.items()},
            variable=variable,
            optional=contract.optional,
            buffers_like=contract.buffers_like or None,
        )
    if "sync_module_states" in contract.keys:
        wanted = _taken_out("sync_module_states", ("sync_module_states", "sync_states"), plan, file, "False")
        plan.sync = cst.Name(wanted)
        if contract.device == "cuda":
            current = cst.parse_expression(f"{file.ref('torch.cuda.current_device')}()")
            plan.device = Device("unset", current)


def _taken_out(key: str, names: tuple[str, ...], plan: ShardPlan, file: File, default: str = "") -> str:
    variable = file.fresh(plan.call, *names)
    otherwise = f", {default}" if default else ""
    plan.taken_out.append(f'{variable} = {plan.spread}.pop("{key}"{otherwise})')
    return variable
