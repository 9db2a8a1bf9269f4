"""What works on a parameter as FSDP1 has it, a flat tensor of this rank's: its elements, its views and its memory."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.parameters import sharded_parameter, sharded_parameters
from fsdp_rules.model.tensors import functions_given
from fsdp_rules.project.project import Certainty

#: Methods, and functions of torch, that give the elements in one dimension: a DTensor of uneven shards raises.
FLATTENS = frozenset({"flatten", "ravel", "reshape", "unflatten", "view"})
#: Those that give elements, of a flat shard where FSDP1 runs them, and rows of the whole parameter under FSDP2.
ROWS = frozenset(
    {
        *("chunk", "gather", "index_add_", "index_copy_", "index_fill_", "index_put_", "index_select"),
        *("masked_scatter_", "masked_select", "narrow", "put_", "scatter_", "select", "take", "tensor_split", "unbind"),
    }
)
#: Those that lists and texts have, too.
ROWS_OF_TENSORS = frozenset({"split"})
#: Functions of Python that give or count the elements.
BUILTINS = frozenset({"enumerate", "iter", "len", "list", "sorted", "sum", "tuple", "zip"})
#: Where the values are in memory.
MEMORY = frozenset({"data_ptr", "storage", "untyped_storage"})
#: The keys of what is no part of a shard.
ALL = (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString, cst.Ellipsis)
RAISES = "{text} of a DTensor raises for uneven shards (FSDP1: a flat shard)"
OTHERS = "{text} covers the whole parameter and is a DTensor (FSDP1: this rank's flat shard)"
WHERE = "{text} of a DTensor is 0 for every parameter, or raises (FSDP1: an address)"


def flat_uses(file: File) -> Iterator[tuple[cst.BaseExpression, Certainty, str]]:
    """Every use of a parameter as a flat tensor, how sure it is that it is sharded, and what becomes of the use."""
    for call in file.nodes(cst.Call):
        yield from _of_call(call, file)
        for function, several in functions_given(call, file):
            name = last_name(function) if (file.resolved(function) or "").startswith("torch.") else ""
            held = sharded_parameters(several, file) if name in FLATTENS | ROWS | MEMORY else Certainty.NO
            if held is not Certainty.NO:
                yield call, held, _message(name)
    for node in file.nodes(cst.Subscript):
        # What has texts as its keys is a group of parameters, or another dictionary; ``[...]`` is every element.
        of_all = any(isinstance(one.slice, cst.Index) and isinstance(one.slice.value, ALL) for one in node.slice)
        held = Certainty.NO if of_all else sharded_parameter(node.value, file)
        if held is not Certainty.NO:
            yield node, held, OTHERS.format(text=file.code(node))
    loops = [one.iter for one in file.nodes(cst.For)] + [one.iter for one in file.nodes(cst.CompFor)]
    for several in loops:
        if (held := sharded_parameter(several, file)) is not Certainty.NO:
            yield several, held, OTHERS.format(text=f"each element of {file.code(several)}")


def _of_call(call: cst.Call, file: File) -> Iterator[tuple[cst.BaseExpression, Certainty, str]]:
    name, func = last_name(call.func), call.func
    is_torch = (file.resolved(func) or "").startswith("torch.")
    if isinstance(func, cst.Name) and not is_torch:
        if name in BUILTINS and call.args:
            held = max(sharded_parameter(one.value, file) for one in call.args)
            if held is not Certainty.NO:
                yield call, held, _message(name)
        return
    if name not in FLATTENS | ROWS | ROWS_OF_TENSORS | MEMORY:
        return
    given = [one.value for one in call.args]
    owner = (given[0] if given else None) if is_torch else func.value if isinstance(func, cst.Attribute) else None
    if owner is None:
        return
    held = sharded_parameter(owner, file)
    if held is not Certainty.NO:
        yield call, held, _message(name)


def _message(name: str) -> str:
    return (RAISES if name in FLATTENS else WHERE if name in MEMORY else OTHERS).format(text=f"{name}()")
