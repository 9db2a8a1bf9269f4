"""What initialises a model on the meta device before it is sharded: unit by unit, on full tensors, as FSDP1 does."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.around import sync_lines
from fsdp_rules.construction._plan.local_functions import defined
from fsdp_rules.construction._plan.plan import ShardPlan
from fsdp_rules.construction._plan.policy_text import at_margin
from fsdp_rules.file.expressions import is_none, is_repeatable, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.own_names import BY_INIT, BY_RESET, IN_ORDER, SUMMARIES, own_name
from fsdp_rules.file.printing import call_text, indent
from fsdp_rules.file.tree import Code
from fsdp_rules.settings import LINE_LENGTH
from fsdp_rules.verdict.diagnosis import Edit

#: How far in the calls of a loop usually are.
DEPTH = 12


def only_empties(function: cst.BaseExpression, file: File) -> bool:
    """Whether ``function`` gives tensors storage and no values, so that the order of the modules does not matter."""
    if isinstance(function, cst.Lambda):
        return _empties(function.body)
    if not isinstance(function, cst.Name):
        return False
    own = [entry for entry in file.nodes(cst.FunctionDef) if entry.name.value == function.value]
    if len(own) != 1 or not isinstance(own[0].body, cst.IndentedBlock):
        return False
    lines = own[0].body.body
    small = [part for line in lines if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    values = [part.value for part in small if isinstance(part, cst.Expr | cst.Return) and part.value is not None]
    return len(values) == len(small) == len(lines) and all(map(_empties, values))


def _empties(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.IfExp):
        return _empties(value.body) and _empties(value.orelse)
    called = value.func if isinstance(value, cst.Call) else None
    return is_none(value) or (isinstance(called, cst.Attribute) and called.attr.value == "to_empty")


def functions(plan: ShardPlan, file: File) -> list[Edit]:
    """The functions of the file that initialise a unit and, where numbers are drawn, go through units in order."""
    if not plan.on_meta:
        return []
    edits = defined(BY_INIT, _with_function(file), file) if plan.param_init_fn is not None else []
    if plan.param_init_fn is None:
        edits += defined(BY_RESET, _with_reset(file), file)
    if plan.draws and plan.selector and plan.units is None:
        edits += defined(IN_ORDER, _in_order(file), file)
    return edits


def _with_function(file: File) -> str:
    head = f"def {own_name(BY_INIT, file)}(unit, init_module):"
    initialise = ["        for module in modules:", "            init_module(module)"]
    return _text([head], SUMMARIES[BY_INIT], initialise, file)


def _with_reset(file: File) -> str:
    head = [f"@{file.ref('torch.no_grad', everywhere=True)}()", f"def {own_name(BY_RESET, file)}(unit, device):"]
    reset = [
        "        for module in (m for m in modules if [*m.parameters(False), *m.buffers(False)]):",
        "            module.to_empty(device=device, recurse=False)",
        "            module.reset_parameters()",
    ]
    return _text(head, SUMMARIES[BY_RESET], reset, file)


def _text(head: list[str], summary: str, initialise: list[str], file: File) -> str:
    sharded = file.ref("torch.distributed.fsdp.FSDPModule", everywhere=True)
    chain = file.ref("itertools.chain", everywhere=True)
    # What is broadcast, if any call of the file does it.
    held = "[tensor for module in modules for tensor in (*module.parameters(False), *module.buffers(False))]"
    broadcasts = "sync_module_states" in file.text
    return "\n".join(
        [
            *head,
            f'    """{summary}, and return its tensors outside of its units."""'
            if broadcasts
            else f'    """{summary}, sharded units in it left out."""',
            "    modules = [unit]",
            "    for module in modules:",
            f"        modules += [m for m in module.children() if m not in modules and not isinstance(m, {sharded})]",
            f"    if any(tensor.is_meta for tensor in {chain}(unit.parameters(), unit.buffers())):",
            *initialise,
            *([f"    return {held}"] if broadcasts else []),
        ]
    )


def _in_order(file: File) -> str:
    name = own_name(IN_ORDER, file)
    return f'''def {name}(module):
    """{SUMMARIES[IN_ORDER]}, in the order in which FSDP1 wraps them."""
    for child in module.children():
        yield from {name}(child)
    yield module'''


@dataclass(frozen=True)
class Arguments:
    """The arguments of ``fully_shard``: the root's own, the units' own, and those that they share."""

    own: dict[str, str]
    its: dict[str, str]
    given: list[str]


def unit_lines(
    plan: ShardPlan, root: str, mesh: str | None, arguments: Arguments, file: File, code: Code
) -> tuple[list[str], str | None]:
    """The statements that initialise, broadcast and shard unit by unit, and the root's call where it is no loop's."""
    lines: list[str] = []
    device = plan.device
    given = device.value if device.kind != "unset" else None
    with_what = code(given) if given is not None else _current_device(file)
    if plan.param_init_fn is not None:
        with_what = code(plan.param_init_fn)
        if not is_repeatable(plan.param_init_fn):
            name = file.fresh(plan.module, "init_module", "init_of_modules")
            lines.append(f"{name} = {at_margin(with_what)}")
            with_what = name
    fully_shard = file.ref("torch.distributed.fsdp.fully_shard")
    if not plan.selector:
        keywords = [f"{name}={text}" for name, text in arguments.own.items()]
        lines += _prepared(plan, root, with_what, mesh, file, code)
        return lines, call_text(fully_shard, [root, *keywords, *arguments.given])
    unit = plan.unit or file.fresh(plan.module, "module", "submodule", "unit")
    keywords = [
        f"{name}={text if text == arguments.its[name] else f'{text} if {unit} is {root} else {arguments.its[name]}'}"
        for name, text in arguments.own.items()
    ]
    body = _prepared(plan, unit, with_what, mesh, file, code)
    call = call_text(fully_shard, [unit, *keywords, *arguments.given])
    own = arguments.own.get("mp_policy")
    if own is not None and len(call) > LINE_LENGTH - DEPTH:
        policy = file.fresh(plan.module, "module_mp_policy", "its_mp_policy", "policy_of_module")
        body.append(f"{policy} = " + keywords[0].removeprefix("mp_policy="))
        call = call_text(fully_shard, [unit, f"mp_policy={policy}", *keywords[1:], *arguments.given])
    body += call.split("\n")
    inner = [indent(line) for line in body]
    if plan.units is not None:
        return [*lines, f"for {unit} in dict.fromkeys([*{plan.units.text(root, code)}, {root}]):", *inner], None
    test = plan.selector.format(module=unit, **{f"n{i}": code(n) for i, n in enumerate(plan.selector_nodes)})
    order = f"dict.fromkeys({own_name(IN_ORDER, file)}({root}))" if plan.draws else f"reversed(list({root}.modules()))"
    return [*lines, f"for {unit} in {order}:", f"    if {unit} is {root} or {test}:", *map(indent, inner)], None


def _prepared(plan: ShardPlan, unit: str, with_what: str, mesh: str | None, file: File, code: Code) -> list[str]:
    """What gives ``unit`` its values, and rank 0's to all ranks."""
    call = f"{own_name(BY_INIT if plan.param_init_fn is not None else BY_RESET, file)}({unit}, {with_what})"
    if plan.sync is None:
        return [call]
    if literal_bool(plan.sync) is True:
        return sync_lines(plan, call, mesh, file, code)
    tensors = file.fresh(plan.module, "tensors", "unit_tensors")
    return [f"{tensors} = {call}", *sync_lines(plan, tensors, mesh, file, code)]


def _current_device(file: File) -> str:
    return f"{file.ref('torch.accelerator.current_accelerator')}()"
