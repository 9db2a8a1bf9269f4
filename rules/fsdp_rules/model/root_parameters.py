"""Whether FSDP1 keeps parameters of a model gathered after a forward that no backward follows."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.ending_units import unit_classes
from fsdp_rules.model.program_wraps import built, has_units, sources_of, wraps_of
from fsdp_rules.model.wrap_arguments import parsed
from fsdp_rules.model.wrap_strategies import stays_gathered_by
from fsdp_rules.project.parts import HARMLESS, Part
from fsdp_rules.project.project import Certainty

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
    strategies = Certainty.NO
    if "keeps_gathered" in file.project.flags:
        strategies = max(stays_gathered_by(one.call, one.path, file) for one in wraps)
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
    """Whether every forward of ``model`` in the file builds no graph, so that none of its backwards frees anything."""
    text = file.code(model)
    calls = [call for call in file.nodes(cst.Call) if file.code(call.func) == text]
    if isinstance(model, cst.Attribute):
        # Others call what an object has by a name of theirs for the object.
        asked = [call for call in file.nodes(cst.Call) if isinstance(call.func, cst.Attribute)]
        calls += [call for call in asked if last_name(call.func) == model.attr.value]
    return bool(calls) and all(_is_without_graph(call, file) for call in calls)


def _is_without_graph(call: cst.Call, file: File) -> bool:
    for one in file.ancestors(call):
        if isinstance(one, cst.With) and any(NO_GRAPH.search(file.code(item)) for item in one.items):
            return True
        if isinstance(one, cst.FunctionDef):
            return any(NO_GRAPH.search(file.code(decorator)) for decorator in one.decorators)
    return False
