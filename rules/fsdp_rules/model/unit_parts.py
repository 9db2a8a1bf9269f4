"""Whether a part of a model is a unit of its own, by what the policies of the program name."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.ending_units import unit_classes
from fsdp_rules.model.program_wraps import parsed, sources_of
from fsdp_rules.project.project import Certainty


def unit_by_class(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node``, which is given an attribute, is a unit that a policy wraps for its class."""
    if not file.layout.has(node):
        return Certainty.NO
    classes = file.project.values.changed.get(file.path, {}).get(file.span(node))
    if not classes:
        return Certainty.NO
    units = unit_classes(map(parsed, sources_of(file)))
    if units is None:
        return Certainty.MAYBE
    return Certainty.NO if units.isdisjoint(classes) else Certainty.YES
