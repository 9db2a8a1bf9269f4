"""Is this a parameter of a sharded model, or the gradient of one, here?"""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import attribute_of
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.run_evidence import run_says
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrapping import model_of_parameter, model_of_parameters
from fsdp_rules.project.observed import GRADIENT, PARAMETER, PARAMETERS
from fsdp_rules.project.project import Certainty

#: What modules of torch call their parameters.
NAMES = frozenset({"bias", "weight"})


@once
def sharded_parameter(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node`` is one parameter of a sharded model, or a tensor of its values."""
    if (by_run := run_says(node, file, PARAMETER)) is not None:
        return by_run
    held = value_of(node, file).parameter
    model = model_of_parameter(node, file) if held is not Certainty.NO else None
    return Certainty.NO if model is not None and sharded(model, file).is_decided else held


def sharded_parameters(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node`` is, or gives one by one, parameters of a sharded model."""
    if (by_run := run_says(node, file, PARAMETERS)) is Certainty.YES:
        return by_run
    held = value_of(node, file).parameters
    model = model_of_parameters(node, file) if held is not Certainty.NO else None
    if model is not None and sharded(model, file).is_decided:
        held = Certainty.NO
    return max(held, sharded_parameter(node, file))


def owner_of_named(node: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """The module whose ``weight`` or ``bias`` the expression ``node`` is, or is another name for; None for others."""
    made = file.objects.origin(node)
    return next((owner for name in sorted(NAMES) if (owner := attribute_of(made, name)) is not None), None)


def sharded_gradient(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node`` is the gradient of a sharded model's parameter."""
    if (by_run := run_says(node, file, GRADIENT)) is not None:
        return by_run
    return value_of(node, file).gradient
