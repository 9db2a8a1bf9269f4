"""Models with 4-bit weights of bitsandbytes, which FSDP1 shards as the bytes that they are and FSDP2 does not."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import last_name, literal_bool, names_in
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.fsdp1.names import FSDP

#: Classes of bitsandbytes whose weights FSDP1 shards as the bytes that they are.
FOUR_BIT = frozenset({"Linear4bit", "LinearFP4", "LinearNF4", "Params4bit"})


def builds_four_bit_weights(call: cst.Call, file: File) -> bool:
    """Whether the function of ``call``, or what it runs of its file, builds such layers, or passes their class on."""
    layers = _four_bit_layers(file.module, file)
    return bool(layers) and any(other in layers for place in _run(call, file) for other in file.inside(place, cst.Call))


@once
def keeps_fsdp1(module: cst.Module, file: File) -> bool:
    """Whether the file wraps models with FSDP1, each of them with such weights, so that its loop is FSDP1's too."""
    if not _four_bit_layers(module, file):
        return False
    wraps = [call for call in file.inside(module, cst.Call) if file.fsdp1(call.func) == FSDP]
    return bool(wraps) and all(builds_four_bit_weights(call, file) for call in wraps)


@once
def _four_bit_layers(module: cst.Module, file: File) -> frozenset[cst.CSTNode]:
    """The calls of the whole file that build such layers or pass their class on; most files have none."""
    return frozenset(call for call in file.inside(module, cst.Call) if _is_four_bit(call))


def _is_four_bit(call: cst.Call) -> bool:
    if last_name(call.func) in FOUR_BIT:
        return True
    if last_name(call.func) in ("isinstance", "issubclass"):
        return False
    for argument in call.args:
        if isinstance(argument.value, cst.Name | cst.Attribute) and last_name(argument.value) in FOUR_BIT:
            return True
        if argument.keyword is not None and argument.keyword.value == "load_in_4bit" and literal_bool(argument.value):
            return True
    return False


def _run(call: cst.Call, file: File) -> Iterator[cst.CSTNode]:
    """The function of ``call`` and its callers in the file, and what these name of the file's functions, in turn."""
    known: dict[str, cst.CSTNode] = {node.name.value: node for node in file.nodes(cst.ClassDef)}
    known.update({node.name.value: node for node in file.nodes(cst.FunctionDef)})
    outside: list[cst.CSTNode] = []
    outside += [entry for entry in file.module.body if not isinstance(entry, cst.FunctionDef | cst.ClassDef)]
    function = file.function(call)
    pending: list[cst.CSTNode] = [function, *_callers(function, outside, file)] if function is not None else outside
    seen: set[cst.CSTNode] = set()
    while pending:
        place = pending.pop()
        if place not in seen:
            seen.add(place)
            yield place
            pending += [known[name.value] for name in names_in(place) if name.value in known]


def _callers(function: cst.FunctionDef, outside: list[cst.CSTNode], file: File) -> list[cst.CSTNode]:
    """The functions, and statements at module level, that name ``function``, directly or by one that does."""
    places: list[cst.CSTNode] = [*file.nodes(cst.FunctionDef), *outside]
    names = {function.name.value}
    found: list[cst.CSTNode] = []
    while more := [one for one in places if one not in found and names & {name.value for name in names_in(one)}]:
        found += more
        names |= {one.name.value for one in more if isinstance(one, cst.FunctionDef)}
    # A program that runs everything in one file at module level hands its models on there.
    return [*found, *outside] if any(one in outside for one in found) else found
