"""Is this a parameter of a sharded model, or the gradient of one, here?"""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import attribute_of, element_text, last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.run_evidence import run_says
from fsdp_rules.model.sharded import sharded, sharded_part, sharded_source
from fsdp_rules.model.wrapping import PASSING, model_of_parameter, model_of_parameters
from fsdp_rules.project.observed import GRADIENT, PARAMETER, PARAMETERS
from fsdp_rules.project.project import Certainty

#: What modules of torch call their parameters.
NAMES = frozenset({"bias", "weight"})
#: Functions that give what all their arguments give, those of itertools among them.
JOINING = PASSING | {"chain", "from_iterable"}


def sharded_parameter(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node`` is a sharded model's parameter, or its data.

    Where no loop of the function says whose parameter it is, the project says where it comes from. Of an attribute only
    the names that modules of torch use count.
    """
    if (by_run := run_says(node, file, PARAMETER)) is not None:
        return by_run
    return max(_parameter(node, file), flowing_parameter(node, file))


def flowing_parameter(node: cst.BaseExpression, file: File) -> Certainty:
    """What the values of the tree say of :func:`sharded_parameter`, unless the model is not sharded yet, here."""
    held = value_of(node, file).parameter
    model = model_of_parameter(node, file) if held is not Certainty.NO else None
    return Certainty.NO if model is not None and sharded(model, file).is_decided else min(held, Certainty.MAYBE)


def _parameter(node: cst.BaseExpression, file: File) -> Certainty:
    while isinstance(node, cst.Attribute) and node.attr.value == "data":
        node = node.value
    model = model_of_parameter(node, file)
    if model is not None:
        return sharded_source(model, file)
    owner = owner_of_named(node, file)
    if owner is not None and (held := sharded_part(owner, file)):
        return held
    text = element_text(node)
    return Certainty.NO if text is None else file.project.parameters.find(file.path, file.scope(node), text).certainty


def sharded_parameters(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that parameters of a sharded model are among those that ``node`` gives.

    ``node`` is a call of ``parameters()``, what passes it on, a display, or a name, a field or an element for such.
    """
    if (by_run := run_says(node, file, PARAMETERS)) is Certainty.YES:
        return by_run
    held = value_of(node, file).parameters
    model = model_of_parameters(node, file) if held is not Certainty.NO else None
    if model is not None and sharded(model, file).is_decided:
        held = Certainty.NO
    return max(_parameters(node, file), min(held, Certainty.MAYBE), flowing_parameter(node, file))


def _parameters(node: cst.BaseExpression, file: File) -> Certainty:
    if isinstance(node, cst.Call) and last_name(node.func) in JOINING:
        return max((sharded_parameters(one.value, file) for one in node.args), default=Certainty.NO)
    if isinstance(node, cst.List | cst.Tuple | cst.Dict):
        # Groups of parameters, each with its options.
        inside = (entry.value for entry in node.elements)
        return max((sharded_parameters(one, file) for one in inside), default=Certainty.NO)
    model = model_of_parameters(node, file)
    if model is not None:
        return sharded_source(model, file)
    return sharded_parameter(node.elt if isinstance(node, cst.ListComp | cst.GeneratorExp) else node, file)


def owner_of_named(node: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """The module whose ``weight`` or ``bias`` the expression ``node`` is, or is another name for; None for others."""
    made = file.objects.origin(node)
    return next((owner for name in sorted(NAMES) if (owner := attribute_of(made, name)) is not None), None)


def sharded_gradient(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node`` is the gradient of a sharded model's parameter: ``p.grad``, or a name for one."""
    if (by_run := run_says(node, file, GRADIENT)) is not None:
        return by_run
    if isinstance(node, cst.Attribute) and node.attr.value == "grad":
        return sharded_parameter(node.value, file)
    flows = min(value_of(node, file).gradient, Certainty.MAYBE)
    text = element_text(node)
    if text is None:
        return flows
    return max(flows, file.project.gradients.find(file.path, file.scope(node), text).certainty)
