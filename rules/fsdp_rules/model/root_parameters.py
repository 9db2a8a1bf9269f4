"""Whether FSDP1 keeps parameters of a model gathered after a forward that no backward follows."""

from __future__ import annotations

import re
from collections import defaultdict

import libcst as cst

from fsdp_rules.file.expressions import last_name, literal_bool, names_in
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.ending_units import unit_classes
from fsdp_rules.model.program_wraps import built, has_units, parsed, sources_of, wraps_of
from fsdp_rules.model.wrapping import loops_around, model_of_parameters
from fsdp_rules.project.parts import HARMLESS, Part
from fsdp_rules.project.project import INNER, Certainty

#: Containers of torch.nn, whose elements are built by calls of their own.
CONTAINERS = re.compile(r"(ModuleList|ModuleDict|Sequential)$")
#: What runs a model without a graph.
NO_GRAPH = re.compile(r"\b(no_grad|inference_mode)\b")


def stay_gathered(model: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that some of the parameters are: the root's own, or those of all units under SHARD_GRAD_OP."""
    wraps, sources = wraps_of(model, file), sources_of(file)
    if not wraps:
        return Certainty.MAYBE
    if not has_units(wraps, sources):
        return Certainty.YES
    # Some of these units are not resharded after the forward, either.
    strategies = Certainty.YES if file.settings.other_layout else Certainty.NO
    if "keeps_gathered" in file.project.flags:
        strategies = max(strategies, *(one.given(file).stays_gathered() for one in wraps))
    units = unit_classes(map(parsed, sources))
    roots = [chain for one in wraps if not one.is_inner and one.call.args for chain in built(one, sources)]
    if strategies is not Certainty.NO or units is None or not roots:
        return max(strategies, Certainty.MAYBE)
    return max(_of_root(one, units, file) for one in roots)


def _of_root(made: tuple[str, ...], units: frozenset[str], file: File) -> Certainty:
    """How sure it is that a module of the class ``made`` has parameters outside of its units."""
    known = file.project.parts.classes.get(made[-1].rpartition(".")[2], ()) if made else ()
    if not known:
        return Certainty.MAYBE
    names = [name for one in known for name in one.calls]
    names = [name for name in names if not HARMLESS.search(name.rpartition(".")[2]) and not CONTAINERS.search(name)]
    left = [name for name in names if name.rpartition(".")[2] not in units]
    found = {file.project.parts.made_by(name) for name in left}
    if Part.HOLDS in found:
        return Certainty.YES
    return Certainty.MAYBE if Part.UNKNOWN in found else Certainty.NO


def runs_without_graph(model: cst.BaseExpression, file: File) -> bool:
    """Whether no forward of ``model`` in the file builds a graph, so that none of its backwards frees anything."""
    while isinstance(model, cst.Attribute) and f".{model.attr.value}" in INNER:
        model = model.value
    text = file.code(model)
    if text in _frozen(file.module, file):
        return True
    calls = _calls(file.module, file).get(text, [])
    if isinstance(model, cst.Attribute):
        # Others call what an object has by a name of theirs for the object.
        calls = [*calls, *_calls(file.module, file).get(f".{model.attr.value}", [])]
    return bool(calls) and all(_is_without_graph(call, file) for call in calls)


@once
def _calls(module: cst.Module, file: File) -> dict[str, list[cst.Call]]:
    """The calls of the file by what they call, those of attributes by ``.`` and the last name, too."""
    found: dict[str, list[cst.Call]] = defaultdict(list)
    for call in file.inside(module, cst.Call):
        found[file.code(call.func)].append(call)
        if isinstance(call.func, cst.Attribute):
            found[f".{last_name(call.func)}"].append(call)
    return found


@once
def _frozen(module: cst.Module, file: File) -> frozenset[str]:
    """The names of models of which the file turns all gradients off, and turns none on."""
    off: set[str] = set()
    on: set[str] = set()
    for call in file.inside(module, cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "requires_grad_":
            turned = off if call.args and literal_bool(call.args[0].value) is False else on
            turned.add(_frozen_by(call.func.value, file))
    for assigned in file.inside(module, cst.Assign):
        for target in (one.target for one in assigned.targets):
            if isinstance(target, cst.Attribute) and target.attr.value == "requires_grad":
                turned = off if literal_bool(assigned.value) is False else on
                turned.add(_frozen_by(target.value, file))
    return frozenset(off - on)


def _frozen_by(node: cst.BaseExpression, file: File) -> str:
    """The model whose parameters ``node``, the variable of a loop, is; another expression is the model itself."""
    text = file.code(node)
    loop = next((one for one in loops_around(node, file) if text in map(file.code, names_in(one.target))), None)
    model = model_of_parameters(loop.iter, file) if loop is not None else node
    return file.code(model) if model is not None else ""


def _is_without_graph(call: cst.Call, file: File) -> bool:
    for one in file.ancestors(call):
        if isinstance(one, cst.With) and any(NO_GRAPH.search(file.code(item)) for item in one.items):
            return True
        if isinstance(one, cst.FunctionDef):
            return any(NO_GRAPH.search(file.code(decorator)) for decorator in one.decorators)
    return False
