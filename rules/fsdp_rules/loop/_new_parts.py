"""What a program puts into a module: which object gets it, under which name, and what it is."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.attribute_names import name_pattern
from fsdp_rules.file.expressions import before_methods, calls_plainly, last_name, literal_text
from fsdp_rules.file.file import File, dotted
from fsdp_rules.model.wrapping import may_wrap
from fsdp_rules.project.parts import Part

#: Methods of modules that take another part, or make one.
METHODS = frozenset({"add_module", "register_module", "register_parameter", "resize_token_embeddings", "set_submodule"})
#: Those of ModuleList and ModuleDict, which lists and dictionaries have too.
GROWS = frozenset({"append", "extend", "insert", "update"})
#: Functions that put other parameters into a module.
EXCHANGES = (
    "peft.get_peft_model",
    "peft.inject_adapter_in_model",
    "torch.nn.utils.parametrizations.",
    "torch.nn.utils.parametrize.",
    "torch.nn.utils.prune.",
    "torch.nn.utils.remove_spectral_norm",
    "torch.nn.utils.remove_weight_norm",
    "torch.nn.utils.spectral_norm",
    "torch.nn.utils.weight_norm",
    "torch.utils.swap_tensors",
)
HARMLESS = ("cached", "is_parametrized", "is_pruned")
#: Methods that give back the module that they are called on.
SAME = frozenset({"bfloat16", "cpu", "cuda", "double", "eval", "float", "half", "requires_grad_", "to", "train"})


@dataclass(frozen=True)
class NewPart:
    """``owner`` gets ``value``, of the kind ``part``, as its attribute ``name`` where it has one.

    ``pattern``: a regular expression for the names that it can get, where the name is no literal.
    """

    owner: cst.BaseExpression
    value: cst.BaseExpression
    part: Part
    name: str = ""
    pattern: str = ""


def assigned(node: cst.Assign | cst.AnnAssign | cst.AugAssign, file: File) -> NewPart | None:
    """What an assignment puts into another object than ``self``."""
    target = node.targets[0].target if isinstance(node, cst.Assign) else node.target
    if not isinstance(target, cst.Attribute | cst.Subscript) or node.value is None:
        return None
    # The wrap of a part that is there, in its place, and the part itself, are none that the model did not have.
    given = [file.code(argument.value) for argument in node.value.args] if isinstance(node.value, cst.Call) else []
    if file.code(target) in given and may_wrap(node.value, file):
        return None
    if isinstance(node.value, cst.Call) and file.code(_moved(node.value)) == file.code(target):
        return None
    # A weight or a bias is a parameter that the module has, which FSDP217 reports.
    if isinstance(target, cst.Attribute) and target.attr.value in ("bias", "weight"):
        return None
    name = target.attr.value if isinstance(target, cst.Attribute) else ""
    return NewPart(target.value, node.value, part_of(node.value, file), name)


def _moved(value: cst.BaseExpression) -> cst.BaseExpression:
    """The module that ``value`` is, where methods that give back the same are called on it."""
    return before_methods(value, SAME)


def exchanged(call: cst.Call, file: File) -> NewPart | None:
    """The module, or parameter, whose parts ``call`` exchanges."""
    func, name = call.func, last_name(call.func)
    given = [argument.value for argument in call.args]
    if isinstance(func, cst.Attribute) and name in METHODS and given:
        plain = part_of(given[-1], file) is Part.PLAIN
        return NewPart(func.value, given[-1], Part.PLAIN if plain else Part.HOLDS, _text(given[0]))
    if isinstance(func, cst.Attribute) and name in GROWS and not isinstance(func.value, cst.Name) and given:
        return NewPart(func.value, given[-1], max(part_of(one, file) for one in given))
    full = file.resolved(func) or ""
    if full.startswith(EXCHANGES) and name not in HARMLESS and given:
        # Several are given as pairs of a module and the name of its parameter.
        first = given[0]
        while isinstance(first, cst.List | cst.Tuple) and first.elements:
            first = first.elements[0].value
        return NewPart(first, call, Part.HOLDS)
    if name != "setattr" or len(given) != 3 or "weight" in file.code(given[1]) or _is_wrapped_in_place(given, file):
        return None
    pattern = "" if isinstance(given[1], cst.SimpleString) else name_pattern(given[1], file)
    return NewPart(given[0], given[2], part_of(given[2], file), _text(given[1]), pattern)


def _is_wrapped_in_place(given: list[cst.BaseExpression], file: File) -> bool:
    """Whether ``setattr`` with the arguments ``given`` puts the wrap of a part in the place of that part."""
    owner, name, value = given
    if not isinstance(value, cst.Call) or not may_wrap(value, file):
        return False
    for one in (argument.value for argument in value.args):
        if isinstance(one, cst.Call) and calls_plainly(one, ("getattr",), 2):
            if [file.code(argument.value) for argument in one.args] == [file.code(owner), file.code(name)]:
                return True
        elif isinstance(one, cst.Name):
            loops = (entry for entry in file.ancestors(value) if isinstance(entry, cst.For))
            bound = ({inner.value for inner in file.inside(loop.target, cst.Name)} for loop in loops)
            if any({one.value, file.code(name)} <= names for names in bound):
                return True
    return False


def part_of(value: cst.BaseExpression, file: File) -> Part:
    """What ``value`` is, by the call that makes it."""
    made = file.objects.origin(value)
    if isinstance(made, cst.List | cst.Tuple):
        return max((part_of(element.value, file) for element in made.elements), default=Part.UNKNOWN)
    while (inner := _moved(made)) is not made:
        made = file.objects.origin(inner)
    if not isinstance(made, cst.Call):
        return Part.UNKNOWN
    func = made.func
    if isinstance(func, cst.Subscript):
        kinds = file.objects.origin(func.value)
        classes = [one.value for one in kinds.elements] if isinstance(kinds, cst.Dict | cst.List | cst.Tuple) else []
    else:
        classes = [func]
    names = [name for one in classes if (name := file.resolved(one) or dotted(one)) is not None]
    return max((file.project.parts.made_by(name) for name in names), default=Part.UNKNOWN)


def _text(node: cst.BaseExpression) -> str:
    return literal_text(node) or ""
