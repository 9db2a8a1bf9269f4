"""Calls that take parameters for plain tensors."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import known_as, value_of
from fsdp_rules.model.parameters import owner_of_named, sharded_parameter, sharded_parameters
from fsdp_rules.model.sharded import sharded_source
from fsdp_rules.model.wrapping import model_of_parameter, model_of_parameters
from fsdp_rules.project.project import Certainty

#: Methods that give the numbers of a plain tensor, and those on the way to them.
NUMBERS = frozenset({"numpy", "tolist"})
PASSED = frozenset({"clone", "contiguous", "cpu", "data", "detach", "double", "flatten", "float", "reshape", "view"})
#: What counts the numbers of a tensor for a picture, by way of NumPy, and the functions of NumPy.
COUNTS = frozenset({"Histogram", "add_histogram"})
ARRAYS = "numpy."
#: Functions that compare tensors, which have to be of one kind; ``allclose`` takes no DTensors at all.
COMPARES = frozenset({"torch.allclose", "torch.equal", "torch.testing.assert_close"})
#: Functions of torch that make a plain tensor of several elements, and methods that change one in place by another.
MAKES = frozenset(
    f"torch.{name}" for name in ("empty", "eye", "full", "normal", "ones", "rand", "randint", "randn", "zeros")
)
CHANGES = frozenset({"add_", "addcdiv_", "addcmul_", "div_", "lerp_", "mul_", "sub_"})
#: What fills many tensors at once, which has no form for DTensors.
FILLS = "torch._foreach_copy_"


def plain_tensor(call: cst.Call, file: File) -> Certainty:
    """How sure it is that ``call`` takes a sharded model's parameter for a plain tensor, which a DTensor is not."""
    func = call.func
    if isinstance(func, cst.Attribute) and func.attr.value in NUMBERS:
        return sharded_parameter(_root(func.value), file)
    given = [argument.value for argument in call.args if argument.keyword is None]
    if isinstance(func, cst.Attribute) and func.attr.value == "copy_" and given:
        target = sharded_parameter(func.value, file)
        # What is kept in an object by name is an average, as a rule: copies, of full parameters if it was careful.
        kept = _root(func.value)
        if target is Certainty.MAYBE and not isinstance(kept, cst.Name) and owner_of_named(kept, file) is None:
            return Certainty.NO
        return Certainty.NO if _may_be_sharded(given[0], file) else target
    if isinstance(func, cst.Attribute) and func.attr.value in CHANGES and any(is_made(one, file) for one in given):
        return sharded_parameter(func.value, file)
    if isinstance(func, cst.Attribute) and func.attr.value == "load_state_dict" and call.args:
        taken = max(sharded_source(func.value, file), value_of(func.value, file).optimizer)
        takes_it_itself = taken is not Certainty.NO or known_as("own", func, file)
        return Certainty.NO if takes_it_itself else sharded_parameters(call.args[0].value, file)
    if file.resolved(func) == FILLS and given:
        model = model_of_parameters(given[0], file)
        return Certainty.NO if model is None else sharded_source(model, file)
    if isinstance(func, cst.Attribute) and func.attr.value == "share_memory_":
        return sharded_parameter(_root(func.value), file)
    if last_name(func) in COUNTS or (file.resolved(func) or "").startswith(ARRAYS):
        return max((sharded_parameter(_root(one.value), file) for one in call.args), default=Certainty.NO)
    if file.resolved(func) in COMPARES and len(given) > 1:
        held = [sharded_parameter(_root(one), file) for one in given[:2]]
        if file.resolved(func) == "torch.allclose":
            return max(held)
        other = given[0] if held[1] > held[0] else given[1]
        return Certainty.NO if _may_be_sharded(other, file) else max(held)
    return Certainty.NO


def added_plain(node: cst.AugAssign, file: File) -> Certainty:
    """How sure it is that ``node``, ``p += torch.randn(p.shape)``, adds a plain tensor to a sharded parameter."""
    return sharded_parameter(node.target, file) if is_made(node.value, file) else Certainty.NO


def is_made(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is a plain tensor that torch makes, or is computed from one."""
    node = file.objects.origin(node)
    if isinstance(node, cst.BinaryOperation):
        return is_made(node.left, file) or is_made(node.right, file)
    if not isinstance(node, cst.Call):
        return False
    if file.resolved(node.func) in MAKES:
        return True
    return isinstance(node.func, cst.Attribute) and file.resolved(node.func) is None and is_made(node.func.value, file)


def _root(node: cst.BaseExpression) -> cst.BaseExpression:
    """What the methods in ``p.detach().cpu()`` are called on."""
    while True:
        if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in PASSED:
            node = node.func.value
        elif isinstance(node, cst.Attribute) and node.attr.value in PASSED:
            node = node.value
        else:
            return node


def _may_be_sharded(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is computed from a parameter, and so is a DTensor itself."""
    if "DTensor" in file.code(node) or "distribute_tensor" in file.code(node):
        return True
    names = [node, *file.inside(node, cst.Name), *file.inside(node, cst.Attribute), *file.inside(node, cst.Subscript)]
    return any(
        model_of_parameter(name, file) is not None or sharded_parameter(name, file) is not Certainty.NO
        for name in names
        if isinstance(name, cst.BaseExpression)
    )
