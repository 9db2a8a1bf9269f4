"""Rule for names of parameters that FSDP1 had flat."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import brief, called_on
from fsdp_rules.file.file import File
from fsdp_rules.loop.name_surgery import PREFIX
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.member_names import names_of
from fsdp_rules.model.parameters import sharded_parameter
from fsdp_rules.model.program_wraps import has_units, sources_of, wraps_of
from fsdp_rules.model.sharded import sharded_names, sharded_owner, sharded_value, wrapper_of
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.wrap_given import flattened
from fsdp_rules.model.wrapping import is_own_name, loops_around, model_of_module, model_of_parameter
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: What asks for a part of a text, by the last name of what is called.
ASKING = frozenset({"count", "endswith", "find", "findall", "fnmatch", "fnmatchcase", "fullmatch", "match", "search"})
#: What parameters are called, and modules that nobody makes units of.
OF_PARAMETERS = re.compile(r"bias|weight|scale|gamma|beta|norm|\bln", re.IGNORECASE)

#: What takes the parameters of a module.
TAKING = ("parameters", "named_parameters")
OF_PARTS = (
    "to keep the numbers, take only parameters that FSDP1 had here, which it trained. To train what was meant, keep "
    "the line"
)

_NEW = "FSDP1 called each unit's single parameter _flat_param here, so these names are new"


class FlatNames(Rule):
    """Parameter names without use_orig_params=True.

    FSDP1 then has one flat parameter per unit, called `_flat_param`. If code groups parameters by name (biases without
    weight decay, for example), no FSDP1 name matched, and all parameters were in one group. FSDP2's parameters have
    their own names and are in the intended groups, which changes the numbers. `fsdp_compat` behaves like FSDP2 here.
    """

    id = "FSDP233"
    name = "flat-names"
    visits = (cst.Comparison, cst.Call)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(net):
    model = FSDP(net)
    biases = [p for name, p in model.named_parameters() if "bias" in name]
    return model, biases
"""
    after = """
from torch.distributed.fsdp import fully_shard

def build(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP233): FSDP1 called each unit's single parameter _flat_param here, so these names are new
    biases = [p for name, p in model.named_parameters() if "bias" in name]
    return model, biases
"""

    def visit(self, node: cst.Comparison | cst.Call, file: File) -> Iterable[Diagnosis]:
        """List what asks for the name of a parameter that was part of a flat one, and takes those of a part."""
        if isinstance(node, cst.Call) and (said := _of_part(node, file)) is not None:
            yield said
        # Tests for FSDP1's own names are FSDP207's.
        asked = _asked(node) if PREFIX.search(file.code(node)) is None else ()
        for name in asked:
            parameter = _named(name, file)
            if parameter is None or is_summoned(node, file):
                continue
            model = model_of_parameter(parameter, file)
            model = model_of_module(model, file) if model is not None else None
            held = sharded_parameter(parameter, file) if model is None else sharded_names(model, file)
            flat = flattened(model, file) if held else Certainty.NO
            # Whole names are FSDP207's, which differ under use_orig_params=True as well.
            if flat is Certainty.NO or (_is_whole(node) and not is_own_name(name, file)):
                continue
            cure = (
                "to keep the numbers, put all parameters in the group that _flat_param was in. To get the "
                "intended behaviour, "
            )
            if flat is Certainty.MAYBE:
                message = f"wherever use_orig_params is not True, {_NEW}"
                yield Diagnosis(node, Level.MANUAL, message, f"{cure}keep the line")
            elif (module := _of_modules(node, file)) is not None:
                message = f"assumes units are inside {module}: FSDP1 called a unit's one parameter _flat_param here"
                yield Diagnosis(node, Level.REVIEW, message, f"{cure}keep the line")
            else:
                yield Diagnosis(node, Level.MANUAL, _NEW, f"{cure}keep the line")
            return


def _of_part(call: cst.Call, file: File) -> Diagnosis | None:
    """What to say of ``call`` if it takes the parameters of a part of a model, which were in a flat one outside."""
    part = next((found for name in TAKING if (found := called_on(call, name)) is not None), None)
    # What a loop runs over are all modules, units among them.
    if (
        part is None
        or isinstance(part, cst.Name)
        or sharded_value(part, file) is not Certainty.NO
        or wrapper_of(part, file) is not None
    ):
        return None
    model = sharded_owner(part, file)
    if model is None or flattened(model, file) is not Certainty.YES or is_summoned(call, file):
        return None
    if known_as("alike", call, file) or known_as("counted", call, file):
        return None
    text = brief(file.code(part), 30)
    if has_units(wraps_of(model, file), sources_of(file)):
        message = f"assumes all parameters of {text} are in units inside it, or FSDP1 had only those of units here"
        return Diagnosis(call, Level.REVIEW, message, OF_PARTS)
    message = f"FSDP1 had no parameters of {text}, which were in the model's flat one, and FSDP2 has them"
    return Diagnosis(call, Level.MANUAL, message, OF_PARTS)


def _asked(node: cst.CSTNode) -> Iterator[cst.Name]:
    """The names that ``node``, a comparison or a call, may test as texts."""
    found: list[cst.BaseExpression] = []
    if isinstance(node, cst.Comparison):
        found = [node.left, *(target.comparator for target in node.comparisons)]
    elif isinstance(node, cst.Call):
        func = node.func
        last = func.attr if isinstance(func, cst.Attribute) else func
        if isinstance(last, cst.Name) and (last.value in ASKING or last.value == "startswith"):
            found = [argument.value for argument in node.args]
            found += [func.value] if isinstance(func, cst.Attribute) else []
    for one in found:
        # name.lower() is a name as well.
        while isinstance(one, cst.Call | cst.Subscript):
            inner = called_on(one)
            one = one.value if isinstance(one, cst.Subscript) else inner or cst.Ellipsis()
        if isinstance(one, cst.Name):
            yield one


def _of_modules(node: cst.CSTNode, file: File) -> str | None:
    """The text that ``node`` looks for, where a unit may be called so: that is in its flat parameter's name, too."""
    texts = [text for text in file.inside(node, cst.SimpleString) if text.raw_value.strip(".")]
    words = [text.value for text in texts if OF_PARAMETERS.search(text.raw_value) is None]
    return words[0] if words and len(words) == len(texts) and isinstance(node, cst.Comparison) else None


def _is_whole(node: cst.CSTNode) -> bool:
    """Whether ``node`` compares all of a name, or its start, with a text."""
    if isinstance(node, cst.Comparison):
        found = node.comparisons[0]
        texts = any(isinstance(one, cst.SimpleString) for one in (node.left, found.comparator))
        return texts and isinstance(found.operator, cst.Equal | cst.NotEqual)
    return called_on(node, "startswith") is not None


def _named(name: cst.Name, file: File) -> cst.Name | None:
    """The parameter that ``name`` comes with, where the loop that gives both reads the parameter."""
    around = [loop for loop in loops_around(name, file) if (pair := _pair(loop.target)) and pair[0].value == name.value]
    # A function may be given the name alone.
    given = [file.parent(one.call) for one in names_of(name, file) if one.call is not None] if not around else []
    for loop in (*around, *given):
        pair = _pair(loop.target) if isinstance(loop, cst.For | cst.CompFor) else None
        if loop is not None and pair is not None:
            whole = next(one for one in (loop, *file.ancestors(loop)) if not isinstance(one, cst.CompFor))
            read = sum(one.value == pair[1].value for one in file.inside(whole, cst.Name))
            return pair[1] if read > 1 else None
    return None


def _pair(target: cst.CSTNode) -> tuple[cst.Name, cst.Name] | None:
    """``name, parameter``, also as the last of an enumeration."""
    if not isinstance(target, cst.Tuple | cst.List) or len(target.elements) != 2:
        return None
    first, second = (element.value for element in target.elements)
    if isinstance(second, cst.Tuple | cst.List):
        return _pair(second)
    return (first, second) if isinstance(first, cst.Name) and isinstance(second, cst.Name) else None
