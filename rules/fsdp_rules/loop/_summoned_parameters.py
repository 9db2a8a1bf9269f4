"""What a loop over gathered parameters does with each of them, and how FSDP2 says it on DTensors."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from fsdp_rules.file.expressions import call_of, given_to
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.verdict.diagnosis import Build, Edit, InsertBefore, Replace

#: What a DTensor answers as the whole parameter does.
SHARED = frozenset({"shape", "dtype", "device", "ndim", "requires_grad", "numel", "size", "dim", "is_floating_point"})
#: Methods whose result is the parameter's own memory.
ALIASES = frozenset({"detach", "view", "view_as", "flatten", "squeeze", "unsqueeze", "t"})
#: Writes of one number to every element, which DTensors do as tensors.
POINTWISE = frozenset({"mul_", "add_", "sub_", "div_", "fill_", "zero_"})
NUMBERS = cst.Integer | cst.Float | cst.UnaryOperation
#: The first torch in which each rank can cut its own shard out of a tensor.
OWN_SHARD = (2, 7)


@dataclass
class Uses:
    """The edits that a loop needs, whether it writes, and what is assumed."""

    edits: list[Edit] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    writes: bool = False


def uses_of(loop: cst.For | cst.CompFor, iterated: str, writeback: bool, to_cpu: bool, file: File) -> Uses | str:
    """What ``loop``, over ``parameters()`` or ``named_parameters()``, needs; or why it cannot be said on DTensors.

    ``writeback``: what is written counts, so that every use has to be known. ``to_cpu``: the whole ones are there.
    """
    name = _variable(loop, iterated)
    if name is None:
        return "this tool cannot see which name holds the parameter"
    found = Uses()
    reads: list[cst.BaseExpression] = []
    for use in _places(loop, name, file):
        value, problem = _value(use, file)
        if problem is not None:
            return problem
        if value is None:
            continue
        method, call = _method(value, file)
        if writeback and _writes_through(value, file):
            return f"{file.code(file.statement(use)).splitlines()[0].strip()} may write to the parameter"
        if not method.endswith("_") or method.startswith("__"):
            if writeback and not method and not _only_reads(value, file):
                return f"{file.code(file.statement(use)).splitlines()[0].strip()} may write to the parameter"
            reads.append(value)
        elif method == "copy_" and call is not None and len(call.args) == 1 and writeback:
            found.writes = True
            found.edits.append(_own_shard(call.args[0].value, name, found, file))
        elif method in POINTWISE and call is not None and writeback and _has_numbers(call):
            found.writes = True
        elif writeback:
            return f"{method} writes to the parameter"
        else:
            reads.append(value)
    suffix = ".full_tensor()" + (".cpu()" if to_cpu else "")
    if len(reads) > 1 and isinstance(loop, cst.For) and not found.writes:
        first = loop.body.body[0]
        place = first.body[0] if isinstance(first, cst.SimpleStatementLine) else first
        found.edits.append(InsertBefore(place, lambda code: f"{name} = {name}{suffix}"))
    else:
        found.edits += [Replace(value, _suffixed(value, suffix)) for value in reads]
    return found


def _variable(loop: cst.For | cst.CompFor, iterated: str) -> str | None:
    target: cst.BaseExpression = loop.target
    if iterated == "named_parameters":
        if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
            return None
        target = target.elements[1].value
    return target.value if isinstance(target, cst.Name) else None


def _places(loop: cst.For | cst.CompFor, name: str, file: File) -> list[cst.Name]:
    """Where ``name`` is read, or bound again, in what ``loop`` repeats."""
    around: cst.CSTNode | None = loop.body if isinstance(loop, cst.For) else file.parent(loop)
    found = []
    for use in file.inside(around, cst.Name) if around is not None else ():
        parent = file.parent(use)
        names = isinstance(parent, cst.Attribute) and parent.attr is use
        keyword = isinstance(parent, cst.Arg) and parent.keyword is use
        if use.value == name and not names and not keyword and not _is_target(use, loop, file):
            found.append(use)
    return found


def _is_target(use: cst.Name, loop: cst.For | cst.CompFor, file: File) -> bool:
    return use is loop.target or loop.target in file.ancestors(use)


def _value(use: cst.Name, file: File) -> tuple[cst.BaseExpression | None, str | None]:
    """``p`` or ``p.data`` where the tensor itself is meant, None where something that DTensors share is asked for."""
    parent = file.parent(use)
    if isinstance(parent, cst.AssignTarget | cst.AugAssign | cst.NamedExpr | cst.Del):
        return None, f"{use.value} is reassigned in the loop"
    value: cst.BaseExpression = use
    if isinstance(parent, cst.Attribute):
        if parent.attr.value in SHARED:
            return None, None
        if parent.attr.value in ("grad", "requires_grad_", "register_hook"):
            return None, f"{use.value}.{parent.attr.value} belongs to the sharded parameter"
        if parent.attr.value == "data":
            value = parent
    around = file.parent(value)
    if isinstance(around, cst.AssignTarget | cst.AugAssign):
        return None, f"{file.code(value)} is assigned"
    if isinstance(around, cst.Subscript) and isinstance(file.parent(around), cst.AssignTarget | cst.AugAssign):
        return None, f"a part of {file.code(value)} is assigned"
    return value, None


def _method(value: cst.BaseExpression, file: File) -> tuple[str, cst.Call | None]:
    """The method of ``value`` that is called, "" where it is none."""
    parent = file.parent(value)
    return (parent.attr.value, call_of(parent, file)) if isinstance(parent, cst.Attribute) else ("", None)


def _writes_through(value: cst.BaseExpression, file: File) -> bool:
    """Whether a view of ``value`` is written to, or kept, so that it may be."""
    node, method = value, ""
    while True:
        method, call = _method(node, file)
        if call is None or method not in ALIASES:
            break
        node = call
    return node is not value and (not method or (method.endswith("_") and not method.startswith("__")))


def _only_reads(value: cst.BaseExpression, file: File) -> bool:
    """Whether what ``value`` is given to, where it is no method of its own, surely leaves it as it is."""
    parent = file.parent(value)
    if isinstance(parent, cst.BinaryOperation | cst.Comparison | cst.ComparisonTarget | cst.Subscript):
        return True
    call = given_to(value, file)
    full = file.resolved(call.func) if call is not None else None
    return full is not None and full.startswith("torch.") and not full.endswith("_") and ".init." not in full


def _has_numbers(call: cst.Call) -> bool:
    return all(isinstance(argument.value, NUMBERS) for argument in call.args)


def _own_shard(written: cst.BaseExpression, name: str, found: Uses, file: File) -> Replace:
    """The edit that makes a DTensor, laid out as the parameter is, of the whole tensor that is copied into it."""
    distribute = file.ref("torch.distributed.tensor.distribute_tensor")
    own = ", src_data_rank=None"
    if file.settings.torch < OWN_SHARD:
        own = ""
        note = "assumes all ranks write the same values (rank 0's are sent; torch 2.7 lets each rank keep its own)"
        found.notes += [note] if note not in found.notes else []

    def build(code: Code) -> str:
        return f"{distribute}({code(written)}, {name}.device_mesh, {name}.placements{own})"

    return Replace(written, build)


def _suffixed(value: cst.BaseExpression, suffix: str) -> Build:
    return lambda code: f"{code(value)}{suffix}"
