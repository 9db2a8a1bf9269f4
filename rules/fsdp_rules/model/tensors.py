"""Is this one parameter of a sharded model, as a tensor: neither several of them, nor a name, nor a place in a list?"""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.parameters import flowing_parameter, owner_of_named, sharded_parameter, sharded_parameters
from fsdp_rules.model.sharded import sharded_source
from fsdp_rules.model.wrapping import PASSING, binds, loops_around, model_of_parameters
from fsdp_rules.project.project import Certainty

#: Functions that call what they are given by the keyword ``key`` with each element of their first argument.
BY_KEY = frozenset({"max", "min", "sorted"})
#: Functions that call their first argument with each element of the others, or of the second.
BY_FUNCTION = frozenset({"accumulate", "filter", "map", "reduce", "starmap"})
#: Methods that give names, or keys, together with what belongs to them.
PAIRS = frozenset({"items", "named_parameters"})
#: Methods and attributes of a tensor that give one of the same values.
SAME = frozenset({"clone", "contiguous", "cpu", "cuda", "data", "detach", "double", "float", "to"})
#: How many names a tensor is followed through.
NAMES = 4


@once
def sharded_tensor(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node`` is one parameter of a sharded model, or a tensor of its values."""
    return max(_tensor(node, file, NAMES), flowing_parameter(node, file))


def same_values(node: cst.BaseExpression) -> cst.BaseExpression:
    """The tensor whose values ``node`` has: ``p`` of ``p.detach().cpu()``."""
    while True:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in SAME:
            node = node.func.value
        elif isinstance(node, cst.Attribute) and node.attr.value in SAME:
            node = node.value
        else:
            return node


def may_be_tensor(node: cst.BaseExpression, file: File) -> Certainty:
    """As :func:`sharded_tensor`, where what a function is given, or another name, may also be several parameters."""
    node = same_values(node)
    if isinstance(node, cst.Name) and (bound := _bound_around(node, file)) is not None:
        return max(bound, sharded_tensor(node, file))
    return max(sharded_tensor(node, file), sharded_parameter(node, file))


def _tensor(node: cst.BaseExpression, file: File, names: int) -> Certainty:
    node = same_values(node)
    if isinstance(node, cst.Name):
        return _of_name(node, file, names)
    if isinstance(node, cst.Subscript):
        if (held := _second_of_pair(node, file)) is not Certainty.NO:
            return held
        # What the project knows of elements may be lists, or dictionaries, of parameters as well.
        model = model_of_parameters(node.value, file)
        other = model is None or _gives_pairs(node.value, file) or _gives_groups(node.value)
        return Certainty.NO if other or model is None else sharded_source(model, file)
    if isinstance(node, cst.Call):
        named = isinstance(node.func, cst.Attribute) and node.func.attr.value == "get_parameter"
        taken = isinstance(node.func, cst.Name) and node.func.value == "next" and not _gives_pairs(node, file)
        return sharded_parameter(node, file) if named or taken else Certainty.NO
    return sharded_parameter(node, file) if owner_of_named(node, file) is not None else Certainty.NO


def functions_given(call: cst.Call, file: File) -> list[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """The functions that ``call``, of ``map`` and the like, calls, each with what it gives them one by one."""
    name = last_name(call.func)
    plain = [one.value for one in call.args if one.keyword is None]
    if name in BY_KEY and plain:
        return [(one.value, plain[0]) for one in call.args if one.keyword is not None and one.keyword.value == "key"]
    is_known = isinstance(call.func, cst.Name) or (file.resolved(call.func) or "").startswith(
        ("functools", "itertools")
    )
    if name in BY_FUNCTION and is_known and len(plain) > 1:
        return [(plain[0], one) for one in (plain[1:2] if name == "reduce" else plain[1:])]
    return []


def _of_name(name: cst.Name, file: File, names: int) -> Certainty:
    if (bound := _bound_around(name, file)) is not None:
        return bound
    scope = file.scope(name)
    found = file.bindings.found.get((scope, name.value), [])
    while not found and scope:
        scope = scope.rpartition(".")[0]
        found = file.bindings.found.get((scope, name.value), [])
    whole = [one for one in found if not _is_of_elements(one.statement)]
    if len(whole) != 1 or not names:
        return Certainty.NO
    if (value := whole[0].value) is not None:
        return _tensor(value, file, names - 1)
    statement = whole[0].statement
    taken = statement.value if isinstance(statement, cst.Assign) else None
    is_next = isinstance(taken, cst.Call) and isinstance(taken.func, cst.Name) and taken.func.value == "next"
    if not isinstance(statement, cst.Assign) or taken is None or not is_next or not _gives_pairs(taken, file):
        return Certainty.NO
    while isinstance(taken, cst.Call) and isinstance(taken.func, cst.Name) and taken.args:
        taken = taken.args[-1].value
    return sharded_parameters(taken, file) if _is_second(statement.targets[0].target, name) else Certainty.NO


def _bound_around(name: cst.Name, file: File) -> Certainty | None:
    """How sure it is that ``name`` is one parameter where a loop, or a lambda, around it binds it; None for others."""
    for around in file.ancestors(name):
        if isinstance(around, cst.FunctionDef):
            break
        if isinstance(around, cst.Lambda) and any(one.name.value == name.value for one in around.params.params):
            return _of_lambda(around, name.value, file)
    for loop in loops_around(name, file):
        if binds(loop.target, name.value):
            return _of_loop(loop.target, loop.iter, name, file)
    return None


def _is_of_elements(statement: cst.CSTNode) -> bool:
    """Whether ``statement`` is one such as ``weight[0] = 1`` or ``weight[0] += 1``, or one such as ``weight += 1``."""
    if isinstance(statement, cst.Assign):
        return all(isinstance(one.target, cst.Subscript) for one in statement.targets)
    return isinstance(statement, cst.AugAssign)


def _of_lambda(function: cst.Lambda, name: str, file: File) -> Certainty:
    """Whether the parameter ``name`` of ``function``, which another call is given, is one parameter of a model."""
    argument = file.parent(function)
    call = file.parent(argument) if isinstance(argument, cst.Arg) else None
    names = [one.name.value for one in function.params.params]
    for given, several in functions_given(call, file) if isinstance(call, cst.Call) else ():
        # The first parameter of what reduce calls is what it has so far.
        accumulates = last_name(call.func) in ("accumulate", "reduce") if isinstance(call, cst.Call) else False
        if given is function and names.index(name) >= int(accumulates):
            return _of_element(several, file)
    return Certainty.NO


def _second_of_pair(node: cst.Subscript, file: File) -> Certainty:
    """``pair[1]`` of a ``pair`` that runs over names and parameters."""
    index = node.slice[0].slice
    if not isinstance(index, cst.Index) or file.code(index) not in ("1", "-1") or not isinstance(node.value, cst.Name):
        return Certainty.NO
    for several in _run_over(node.value, file):
        if _gives_pairs(several, file):
            return sharded_parameters(several, file)
    return Certainty.NO


def _run_over(name: cst.Name, file: File) -> list[cst.BaseExpression]:
    """What the loops, and the calls with a lambda, around ``name`` give it one by one."""
    found = [
        loop.iter
        for loop in loops_around(name, file)
        if isinstance(loop.target, cst.Name) and loop.target.value == name.value
    ]
    for around in file.ancestors(name):
        argument = file.parent(around)
        call = file.parent(argument) if isinstance(argument, cst.Arg) else None
        if isinstance(around, cst.Lambda) and isinstance(call, cst.Call):
            found += [several for given, several in functions_given(call, file) if given is around]
    return found


def _of_loop(target: cst.BaseExpression, several: cst.BaseExpression, name: cst.Name, file: File) -> Certainty:
    """How sure it is that ``name`` in ``target`` gets a parameter where a loop runs over ``several``."""
    iterated = file.objects.origin(several)
    parts = [one.value for one in target.elements] if isinstance(target, cst.Tuple | cst.List) else []
    if isinstance(iterated, cst.Call) and isinstance(iterated.func, cst.Name) and iterated.args:
        given = [one.value for one in iterated.args]
        if iterated.func.value == "enumerate":
            is_element = len(parts) == 2 and binds(parts[1], name.value)
            return _of_loop(parts[1], given[0], name, file) if is_element else Certainty.NO
        if iterated.func.value == "zip":
            found = [(part, one) for part, one in zip(parts, given, strict=False) if binds(part, name.value)]
            part, one = found[0] if found else (target, several)
            if not found or isinstance(part, cst.Tuple | cst.List):
                return _of_loop(part, one, name, file) if found else Certainty.NO
            return _of_element(one, file)
        if iterated.func.value in PASSING - {"dict"}:
            return _of_loop(target, given[-1], name, file)
    if _gives_pairs(iterated, file):
        return sharded_parameters(several, file) if _is_second(target, name) else Certainty.NO
    if not isinstance(target, cst.Name) or _gives_names(iterated) or _gives_groups(several):
        return Certainty.NO
    return sharded_parameter(name, file)


def _of_element(several: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that each of ``several`` is a parameter, and no pair of one and its name."""
    if _gives_pairs(several, file) or _gives_names(file.objects.origin(several)):
        return Certainty.NO
    return sharded_parameters(several, file)


def _is_second(target: cst.BaseExpression, name: cst.Name) -> bool:
    """Whether ``target`` is a pair, the second of which is ``name``."""
    second = target.elements[-1].value if isinstance(target, cst.Tuple | cst.List) else None
    return isinstance(second, cst.Name) and second.value == name.value


def _gives_names(node: cst.BaseExpression) -> bool:
    """Whether a loop over ``node`` gives the keys of a dictionary."""
    if isinstance(node, cst.DictComp | cst.Dict):
        return True
    return isinstance(node, cst.Call) and last_name(node.func) in ("dict", "keys", "OrderedDict")


def _gives_groups(node: cst.BaseExpression) -> bool:
    """Whether ``node`` gives groups of parameters, each with its options."""
    return "group" in last_name(node).lower()


def _gives_pairs(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` gives pairs of names and parameters, or is one of such."""
    node = file.objects.origin(node)
    if not isinstance(node, cst.Call):
        return isinstance(node, cst.Subscript) and _gives_pairs(node.value, file)
    if isinstance(node.func, cst.Attribute):
        return node.func.attr.value in PAIRS
    passes = isinstance(node.func, cst.Name) and node.func.value in (PASSING | {"next"}) - {"dict"} and node.args
    return bool(passes) and _gives_pairs(node.args[-1].value, file)
