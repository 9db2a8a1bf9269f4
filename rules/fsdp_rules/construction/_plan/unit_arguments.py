"""What the function of a CustomPolicy says of each module: nothing, the root's arguments, or arguments of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.construction._plan.leaves import is_shared, leaves
from fsdp_rules.construction._plan.policy_text import display, policy_text
from fsdp_rules.construction._plan.precision_fields import precision_fields
from fsdp_rules.construction._plan.slots import definition, home_of
from fsdp_rules.construction._plan.strategies import known_strategy
from fsdp_rules.file.expressions import bind, brief, dict_entries, is_none, literal_bool
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.strategy_names import ZERO2
from fsdp_rules.project.configured import Contract, Slot
from fsdp_rules.verdict.diagnosis import Edit, Replace

#: The part of a slot that is what its function says of a module.
UNITS = "units"
#: What fully_shard calls the arguments that a unit may have of its own; "" for those that mean nothing to it.
KEYS = {
    "sharding_strategy": "reshard_after_forward",
    "mixed_precision": "mp_policy",
    "backward_prefetch": "",
    "forward_prefetch": "",
    "limit_all_gathers": "",
    "use_orig_params": "",
}
#: Functions, and methods, that give True or False.
TESTS = frozenset({"all", "any", "bool", "callable", "hasattr", "isinstance", "issubclass"})
TESTING = frozenset({"endswith", "isdisjoint", "issubset", "issuperset", "startswith"})

Function = cst.FunctionDef | cst.Lambda


@dataclass(frozen=True)
class Units:
    """What ``function`` says of modules; ``reason``: why that is not known ("" where it is).

    ``tests`` are values that are True or False, ``given`` those that are arguments, with these arguments. Each of
    ``given`` may be chosen by what is left of an ``and``.
    """

    function: Function | None = None
    tests: tuple[cst.BaseExpression, ...] = ()
    given: tuple[tuple[cst.BaseExpression, dict[str, cst.BaseExpression]], ...] = ()
    reason: str = ""


def function_of(policy: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """The function that ``policy``, a CustomPolicy, is made of; None for another policy."""
    if not isinstance(policy, cst.Call) or file.fsdp1(policy.func) != "CustomPolicy":
        return None
    return (bind(policy, ("lambda_fn",)) or {}).get("lambda_fn")


def slot_of_units(function: cst.BaseExpression, file: File) -> Slot | None:
    """Where the module-level function is defined, in this file or in another one."""
    home = home_of(function, file)
    return Slot(*home, part=UNITS) if home is not None else None


def says(function: cst.BaseExpression, file: File) -> Contract | str:
    """What the ``function`` of a CustomPolicy says of modules, or why that is not known."""
    slot = slot_of_units(function, file)
    if slot is not None and slot.path != file.path:
        contract = file.project.configured.get(slot)
        return contract or f"what {brief(file.code(function), 30)} returns is only known at run time"
    return contract_of_units(units(function, file), file)


def only_tests(function: cst.BaseExpression, file: File) -> bool:
    """Whether the ``function`` of a CustomPolicy gives no unit arguments of its own."""
    found = says(function, file)
    return isinstance(found, Contract) and found.kind == "test"


def units(function: cst.BaseExpression, file: File) -> Units:
    """What the ``function`` of a CustomPolicy says of modules, where this file defines it."""
    name = brief(file.code(function), 30)
    found: Function | None = function if isinstance(function, cst.Lambda) else None
    if isinstance(function, cst.Name):
        slot = slot_of_units(function, file)
        found = definition(slot.name, file) if slot is not None and slot.path == file.path else _local(function, file)
    if found is None or len(found.params.params) != 1:
        return Units(reason=f"what {name} returns is only known at run time")
    return units_of(found, name, file)


def of_slot(slot: Slot, file: File) -> Units:
    """What the function of ``slot``, in ``file``, says of modules."""
    function = definition(slot.name, file)
    return units_of(function, slot.name, file) if function is not None else Units(reason="no function")


def units_of(function: Function, name: str, file: File) -> Units:
    """What ``function``, called ``name``, says of modules."""
    if _changes_something(function, file):
        return Units(reason=f"{name} has side effects, so the order of its calls may matter")
    tests: list[cst.BaseExpression] = []
    given: list[tuple[cst.BaseExpression, dict[str, cst.BaseExpression]]] = []
    certain = isinstance(function, cst.FunctionDef) and _is_bool(function.returns)
    for value in _returned(function, file):
        found = leaves(value, file)
        for node in found.nodes:
            arguments = dict_entries(_chosen(node)[1])
            if arguments is not None and not found.unknown and not is_shared(found, file):
                given.append((node, arguments))
            elif (certain or _is_test(node)) and not found.unknown:
                tests.append(node)
            else:
                return Units(reason=f"{name} returns {brief(file.code(node), 40)}, which is only known at run time")
    return Units(function, tuple(tests), tuple(given))


def contract_of_units(found: Units, file: File) -> Contract | str:
    """What the values become together, or why they cannot become arguments of ``fully_shard``."""
    if found.reason:
        return found.reason
    strategies: set[str] = set()
    keys: set[str] = set()
    buffers: set[str] = set()
    for _, arguments in found.given:
        for key, value in arguments.items():
            if key not in KEYS:
                return f"a unit has its own {key}"
            if not _is_known(key, value, file):
                return f"{key}={brief(file.code(value), 40)} of a unit is only known at run time"
            keys.add(KEYS[key])
            if key == "sharding_strategy":
                strategies.add(known_strategy(file.value(value), file) or "")
            if key == "mixed_precision":
                fields = precision_fields(file.value(value), file) or {}
                dtype = fields.get("buffer_dtype")
                buffers.add("" if dtype is None or is_none(dtype) else file.resolved(dtype) or file.code(dtype))
    if len(buffers) > 1:
        return "units have different buffer_dtype"
    if not found.given:
        return Contract("test")
    return Contract(
        "units",
        keys=frozenset(keys - {""}),
        strategies=frozenset(strategies),
        buffers_like=buffers.pop() if buffers else "",
    )


def unit_edits(found: Units, file: File) -> list[Edit]:
    """What the values become: a dictionary of arguments of ``fully_shard``, or None for no unit."""
    edits: list[Edit] = [_test(node, file) for node in found.tests]
    edits += [_given(node, arguments, file) for node, arguments in found.given]
    if isinstance(found.function, cst.FunctionDef) and found.function.returns is not None:
        optional = file.ref("typing.Optional")
        edits.append(Replace(found.function.returns.annotation, lambda code: f"{optional}[dict]"))
    return edits


def read_by_units(found: Units, file: File) -> Iterator[tuple[cst.CSTNode, str]]:
    """The assignments of configurations that the values name, which nothing may read afterwards."""
    for _, arguments in found.given:
        for value in arguments.values():
            binding = file.binding(value)
            if isinstance(value, cst.Name) and binding is not None:
                yield binding.statement, value.value


def _is_known(key: str, value: cst.BaseExpression, file: File) -> bool:
    value = file.value(value)
    if key == "sharding_strategy":
        return known_strategy(value, file) is not None and not is_none(value)
    if key == "mixed_precision" and not is_none(value):
        fields = precision_fields(value, file)
        flags = ("keep_low_precision_grads", "cast_forward_inputs")
        if fields is None or "_module_classes_to_ignore" in fields:
            return False
        if any(literal_bool(fields[flag]) is None for flag in flags if flag in fields):
            return False
        kept = fields.get("keep_low_precision_grads")
        dtypes = [fields[name] for name in ("param_dtype", "reduce_dtype", "buffer_dtype") if name in fields]
        return literal_bool(kept) is not True and all(dotted(dtype) is not None for dtype in dtypes)
    return True


def _test(node: cst.BaseExpression, file: File) -> Edit:
    known = literal_bool(node)
    if known is not None:
        return Replace(node, lambda code: "{}" if known else "None")
    inside = isinstance(file.parent(node), cst.IfExp)
    return Replace(
        node, lambda code: f"({{}} if {code(node)} else None)" if inside else f"{{}} if {code(node)} else None"
    )


def _given(node: cst.BaseExpression, arguments: dict[str, cst.BaseExpression], file: File) -> Edit:
    def build(code: Code) -> str:
        entries = [f'"{KEYS[key]}": {_value(key, value, file, code)}' for key, value in arguments.items() if KEYS[key]]
        text = display(entries)
        if not arguments:
            return "None"
        test = _chosen(node)[0]
        if test is None:
            return text
        text = f"{text} if {code(test)} else None"
        return f"({text})" if isinstance(file.parent(node), cst.IfExp) else text

    return Replace(node, build)


def _value(key: str, value: cst.BaseExpression, file: File, code: Code) -> str:
    value = file.value(value)
    if key == "sharding_strategy":
        return str(known_strategy(value, file) not in ZERO2)
    fields = precision_fields(value, file)
    if fields is None:
        return f"{file.ref('torch.distributed.fsdp.MixedPrecisionPolicy')}()"
    return policy_text(fields, file, code, bool(literal_bool(fields.get("cast_forward_inputs"))))


def _chosen(node: cst.BaseExpression) -> tuple[cst.BaseExpression | None, cst.BaseExpression]:
    """The test and the dictionary of ``test and {...}``; no test and ``node`` itself for others."""
    chooses = isinstance(node, cst.BooleanOperation) and isinstance(node.operator, cst.And)
    if isinstance(node, cst.BooleanOperation) and chooses and dict_entries(node.right) is not None:
        return node.left, node.right
    return None, node


def _returned(function: Function, file: File) -> list[cst.BaseExpression]:
    if isinstance(function, cst.Lambda):
        return [function.body]
    own = [entry for entry in file.inside(function, cst.Return) if file.function(entry) is function]
    # FSDP1 refuses None.
    return [entry.value for entry in own if entry.value is not None and not is_none(entry.value)]


def _is_bool(returns: cst.Annotation | None) -> bool:
    return returns is not None and isinstance(returns.annotation, cst.Name) and returns.annotation.value == "bool"


def _is_test(node: cst.BaseExpression) -> bool:
    """Whether ``node`` is True or False, whatever it is asked about."""
    if isinstance(node, cst.BooleanOperation):
        return _is_test(node.left) and _is_test(node.right)
    if isinstance(node, cst.Call):
        if isinstance(node.func, cst.Attribute):
            return node.func.attr.value in TESTING
        return isinstance(node.func, cst.Name) and node.func.value in TESTS
    negates = isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not)
    return negates or isinstance(node, cst.Comparison) or literal_bool(node) is not None


def _changes_something(function: Function, file: File) -> bool:
    """Whether ``function`` may do something beside its answer, so that the order of the modules may matter."""
    if any((file.inside(function, cst.Global), file.inside(function, cst.Nonlocal), file.inside(function, cst.Yield))):
        return True
    if any(not isinstance(entry.value, cst.BaseString | cst.Ellipsis) for entry in file.inside(function, cst.Expr)):
        return True
    written = [entry.target for entry in file.inside(function, cst.AssignTarget)]
    written += [entry.target for entry in file.inside(function, cst.AugAssign)]
    if any(not isinstance(target, cst.Name) for target in written):
        return True
    called = [entry.func for entry in file.inside(function, cst.Call)]
    return any(isinstance(name, cst.Name) and name.value == "next" for name in called)


def _local(name: cst.Name, file: File) -> cst.FunctionDef | None:
    """The function called ``name`` of the function around it, which nothing else reads."""
    scope = file.scope(name)
    found = [one for one in file.nodes(cst.FunctionDef) if one.name.value == name.value and file.scope(one) == scope]
    bound = file.bindings.found.get((scope, name.value))
    plain = len(found) == 1 and not found[0].decorators and found[0].asynchronous is None
    return found[0] if plain and scope and not bound and file.uses(name.value) == [name] else None
