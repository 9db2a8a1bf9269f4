"""Attributes of a model whose name is no literal: ``getattr(model, name)``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp_rules.file.attribute_names import ANY, name_pattern
from fsdp_rules.file.file import File
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

ASKING = frozenset({"delattr", "getattr", "hasattr"})
MAKERS = ("operator.attrgetter", "operator.methodcaller")
#: How many names a message lists.
LISTED = 3


def about_runtime_name(call: cst.Call, names: Sequence[str], file: File) -> Iterator[Diagnosis]:
    """The verdict about ``call`` where it takes an attribute of a sharded model that may be one of ``names``."""
    taken = _taken(call, file)
    if taken is None:
        return
    model, text = taken
    held = sharded(model, file).certainty
    if held is Certainty.NO or is_not_sharded_yet(call, model, file) or is_summoned(call, file):
        return
    pattern = name_pattern(text, file)
    found = [name for name in names if re.fullmatch(pattern, name)]
    if not found:
        return
    sure = held is Certainty.YES
    unsure = "" if sure else "if this model is sharded: "
    if ANY not in pattern:
        yield Diagnosis(
            call,
            Level.MANUAL,
            f'{unsure}"{found[0]}" is read from the model by name, and means something else under FSDP2',
            f"write {file.code(model)}.{found[0]} as an attribute, and run this tool again",
        )
        return
    listed = ", ".join(found[:LISTED]) + (", ..." if len(found) > LISTED else "")
    yield Diagnosis(
        call,
        Level.REVIEW,
        f"{unsure or 'assumes '}this name does not mean something else under FSDP2 ({listed})",
        "if it can be one of these, write the attribute in the code, and run this tool again",
    )


def _taken(call: cst.Call, file: File) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """What ``call`` takes an attribute of, and the expression for its name; None for a literal and for other calls."""
    given = [argument.value for argument in call.args]
    if any(argument.star or argument.keyword is not None for argument in call.args):
        return None
    maker = file.value(call.func)
    if isinstance(call.func, cst.Name) and call.func.value in ASKING and len(given) > 1:
        model, text = given[0], given[1]
    elif isinstance(maker, cst.Call) and file.resolved(maker.func) in MAKERS and len(maker.args) == 1 and given:
        model, text = given[0], maker.args[0].value
    elif isinstance(call.func, cst.Attribute) and call.func.attr.value in ("__getattr__", "__getattribute__") and given:
        model, text = call.func.value, given[0]
    else:
        return None
    return None if isinstance(text, cst.SimpleString) else (model, text)
