"""Gradients that are cleared between a forward and its backward, and whether FSDP1 keeps them there."""

from __future__ import annotations

import sys
from typing import NamedTuple

import libcst as cst

from fsdp_rules.file.expressions import element_text, last_name, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.model.between import awaited_forwards, forwards_of
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.kept_gradients import kept_gradients
from fsdp_rules.model.parameter_reads import parameter_reads
from fsdp_rules.model.passes import end_of, kind_of, passes_in
from fsdp_rules.model.program_wraps import Wrap, carried_in
from fsdp_rules.model.sharded import sharded_part
from fsdp_rules.model.wrapping import loops_around
from fsdp_rules.project.entered import Pass
from fsdp_rules.project.optimizers import OPTIMIZER, Optimizer, is_optimizer
from fsdp_rules.project.project import Certainty


class Clearing(NamedTuple):
    """Where gradients are cleared, how sure it is that FSDP1 keeps some, and whether an optimizer clears them.

    ``wraps`` are those that the model may come from, empty where they are not known.
    """

    place: cst.CSTNode
    kept: Certainty
    by_optimizer: bool
    wraps: tuple[Wrap, ...]


@once
def kept_clearings(module: cst.Module, file: File) -> list[Clearing]:
    """Every place in the file where gradients are cleared of which FSDP1 keeps some, or may."""
    if "keeps_gathered" not in file.project.flags:
        return []
    found = (kept_clearing(place, part, file) for place, part, clears in parameter_reads(file) if clears)
    return [one for one in found if one is not None]


def has_kept_clearing(wrap: cst.Call, file: File) -> bool:
    """Whether gradients of which FSDP1 keeps some are cleared in the program, and ``wrap`` is to carry that over."""
    line = file.span(wrap).line
    return (file.path, line) in file.project.carried or any(
        line in {one.call.lineno for one in carried_in(found.wraps, file)}
        for found in kept_clearings(file.module, file)
        if is_to_carry(found)
    )


def is_to_carry(found: Clearing) -> bool:
    """Whether FSDP1's constructor alone makes the models, and FSDP1 may keep what an optimizer clears there."""
    known = bool(found.wraps) and all(one.is_constructor for one in found.wraps)
    return known and (found.by_optimizer or found.kept is not Certainty.YES)


def is_carried(found: Clearing, file: File) -> bool:
    """Whether all wraps of the models at ``found`` keep what FSDP1 keeps, in ``file`` or in others."""
    places = {(one.path, one.call.lineno) for one in found.wraps if one.path != file.path}
    return is_to_carry(found) and places <= file.project.carried


def kept_clearing(place: cst.CSTNode, part: cst.BaseExpression, file: File) -> Clearing | None:
    """What becomes under FSDP1 of the gradients of ``part`` that are cleared at ``place``; None where they are."""
    by_model = sharded_part(part, file) is not Certainty.NO
    if not by_model and not (_is_optimizer(part, file) and isinstance(place, cst.Call) and not _fills(place)):
        return None
    forwards = awaited_forwards(place, file)
    if forwards is None or _is_cleared_above(place, part, file):
        return None
    models = forwards_of(forwards, file)
    mine = [] if by_model else _models_of(part, file)
    if by_model and models and file.code(part) not in {file.code(one) for one in models}:
        return None
    if mine and models:
        models = [one for one in models if any(f"{_root(one, file)}.".startswith(f"{name}.") for name in mine)]
        if not models:
            return None
    own = [part] if by_model else models
    found = [kept_gradients(one, file) for one in own] or [kept_gradients(None, file)]
    partly = not by_model and any(_is_shared(one, place, file) for one in models)
    sure = max((one.sure for one in found if by_model or one.by_optimizer or partly), default=Certainty.NO)
    wraps = dict.fromkeys(wrap for one in found for wrap in one.wraps)
    return None if sure is Certainty.NO else Clearing(place, sure, not by_model, tuple(wraps))


def _fills(call: cst.Call) -> bool:
    """Whether ``call`` fills gradients with zeros, which FSDP1 sees."""
    given = [one for one in call.args if one.keyword is None or one.keyword.value == "set_to_none"]
    return bool(given) and literal_bool(given[0].value) is False


def _is_optimizer(part: cst.BaseExpression, file: File) -> bool:
    if value_of(part, file).optimizer is not Certainty.NO:
        return True
    over = [file.code(loop.iter) for loop in loops_around(part, file) if file.code(loop.target) == file.code(part)]
    names = [last_name(part), *(text.rpartition(".")[2].strip("()[] ") for text in over)]
    if any(OPTIMIZER.search(name) or name in ("opts", "optims") for name in names):
        return True
    made = file.objects.origin(part)
    return isinstance(made, cst.Call) and is_optimizer(file.resolved(made.func) or "")


def _models_of(part: cst.BaseExpression, file: File) -> set[str]:
    """The names that the parameters of the optimizer ``part`` are read from, empty where nothing builds it here."""
    made = file.objects.origin(part)
    built = [one for one in _optimizers(file) if isinstance(made, cst.Call) and one.end == end_of(made, file)]
    return {name for one in built for name in one.models}


def _optimizers(file: File) -> list[Optimizer]:
    return [one for path, one in file.project.optimizers.found if path == file.path and not one.used]


def _root(model: cst.BaseExpression, file: File) -> str:
    return element_text(model) or file.code(model)


def _is_shared(model: cst.BaseExpression, place: cst.CSTNode, file: File) -> bool:
    """Whether several optimizers have parameters of ``model``, and not all of them clear theirs beside ``place``."""
    text = _root(model, file)
    several = [one for one in _optimizers(file) if text in one.models]
    events = passes_in(file.function(place) or file.module, file)
    ends = [end_of(one.call, file) for one in events]
    first = max((end for end in ends if end < end_of(place, file)), default=(0, 0))
    last = min((end for end in ends if end > end_of(place, file)), default=(sys.maxsize, 0))
    beside = [one for one in file.block(file.statement(place)) if first < end_of(one, file) < last]
    return len(several) > 1 and sum(".zero_grad(" in file.code(one) for one in beside) < len(several)


def _is_cleared_above(place: cst.CSTNode, part: cst.BaseExpression, file: File) -> bool:
    """Whether the same gradients are cleared again on the way from the last backward to ``place``."""
    owner, start = file.function(place) or file.module, end_of(file.statement(place), file)
    backwards = [one.call for one in passes_in(owner, file) if kind_of(one.call, file) is Pass.BACKWARD]
    last = max((end_of(one, file) for one in backwards if end_of(one, file) < start), default=(0, 0))
    around = {*file.ancestors(place)}
    loop = next((one for one in file.ancestors(place) if isinstance(one, cst.For | cst.While)), None)
    for other, cleared, clears in parameter_reads(file):
        same = clears and other is not place and file.code(cleared) == file.code(part)
        if not same or (file.function(other) or file.module) is not owner:
            continue
        if any(one not in around for one in file.ancestors(other) if isinstance(one, cst.If | cst.For | cst.Else)):
            continue
        inside = loop is not None and loop in set(file.ancestors(other))
        after = inside and end_of(other, file) > max((end_of(one, file) for one in backwards), default=start)
        if after or (last < end_of(other, file) < start and (inside or loop is None)):
            return True
    return False
