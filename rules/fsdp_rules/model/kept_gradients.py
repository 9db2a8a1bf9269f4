"""Whether FSDP1 keeps a gradient that is cleared between a forward and its backward, by the wraps of a program."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.expressions import element_text
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import expand
from fsdp_rules.model.ending_units import OTHER_POLICIES, unit_classes
from fsdp_rules.model.wrap_arguments import CONSTRUCTOR, parsed, placed_wrap_of
from fsdp_rules.model.wrap_strategies import keeps_originals, stays_gathered_by
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.endings import assigned, chain_of, may_end_in
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.walking import walk

#: What wraps units inside of a model, beside a policy.
WRAPS_INSIDE = re.compile(rb"\b(enable_wrap|auto_wrap)\b|(?<![.\w])wrap\(")
#: A policy that gives units strategies of their own.
OWN_STRATEGIES = OTHER_POLICIES[0].encode()
POLICY = "auto_wrap_policy"


@dataclass(frozen=True)
class Kept:
    """``sure``: how sure it is that some unit keeps its gradient where the model's registered parameters are asked.

    ``by_optimizer``: whether one may keep it where an optimizer clears all of them: a unit whose output is the model's.
    """

    sure: Certainty
    by_optimizer: bool


@dataclass(frozen=True)
class _Wrap:
    path: str
    call: ast.Call
    target: ast.expr | None

    @property
    def is_inner(self) -> bool:
        """Whether it puts a part of a model in the place of that part."""
        return self.target is not None and not isinstance(self.target, ast.Name)


def kept_gradients(model: cst.BaseExpression | None, file: File) -> Kept:
    """Whether units of ``model``, or of any where it is None, keep gradients that are cleared after their forward.

    FSDP1 does under the strategies that keep units gathered, with ``use_orig_params=True``: what is registered then are
    tensors without gradients, and a unit whose backward starts before the root's has not looked at the optimizer's.
    """
    if "keeps_gathered" not in file.project.flags:
        return Kept(Certainty.NO, False)
    wraps = [*_wraps(file)]
    own = placed_wrap_of(element_text(model) or "", file.scope(model), file) if model is not None else None
    if own is not None:
        mine = [one for one in wraps if (one.path, one.call.lineno) == (own[0], own[1].lineno)]
        wraps = [*mine, *(one for one in wraps if one.is_inner and one not in mine)] if mine else wraps
    sure = max((_sure(one, file) for one in wraps), default=Certainty.MAYBE)
    sources = [file.project.sources[path] for path in _paths(file)]
    if sure is Certainty.NO and any(OWN_STRATEGIES in source for source in sources):
        originals = (keeps_originals(one.call, one.path, file) for one in wraps)
        sure = min(Certainty.MAYBE, max(originals, default=Certainty.MAYBE))
    if not wraps and not any(b"use_orig_params" in source for source in sources):
        sure = Certainty.NO
    return Kept(sure, sure is not Certainty.NO and _may_end_in_unit(wraps, sources, file))


def _sure(wrap: _Wrap, file: File) -> Certainty:
    return min(stays_gathered_by(wrap.call, wrap.path, file), keeps_originals(wrap.call, wrap.path, file))


def _paths(file: File) -> list[str]:
    programs = file.project.entered.programs
    return [path for path in file.project.sources if programs.may_share(file.path, path)]


def _wraps(file: File) -> Iterator[_Wrap]:
    """Every call of the program that wraps, or hands FSDP1's constructor on with arguments for it."""
    for path in _paths(file):
        source = file.project.sources[path]
        aliases = file.project.aliases(path)
        targets: dict[int, ast.expr] = {}
        nodes = [*walk(parsed(source))]
        for node in nodes:
            for target, value in assigned(node):
                targets[id(value)] = target
        for node in nodes:
            if isinstance(node, ast.Call) and _is_wrap(node, aliases):
                yield _Wrap(path, node, targets.get(id(node)))


def _is_wrap(call: ast.Call, aliases: dict[str, str]) -> bool:
    def is_constructor(node: ast.expr) -> bool:
        return expand(text_of(node) or "", aliases).endswith(f".{CONSTRUCTOR}")

    given = [*call.args, *(word.value for word in call.keywords)]
    return is_constructor(call.func) or (bool(call.keywords) and any(map(is_constructor, given)))


def _may_end_in_unit(wraps: list[_Wrap], sources: list[bytes], file: File) -> bool:
    """Whether one of the models may have units inside, and give what such a unit has given."""
    inner = [one for one in wraps if one.is_inner]
    words = {word.arg for one in wraps for word in one.call.keywords}
    if not (inner or words & {POLICY, None} or any(WRAPS_INSIDE.search(source) for source in sources)):
        return not wraps
    wrapped = {text.rpartition(".")[2] for one in inner if (text := text_of(one.target)) is not None}
    known = {name: [one.ends for one in found] for name, found in file.project.parts.classes.items()}
    classes = {**file.project.values.ends, **known}
    units = unit_classes(map(parsed, sources))
    if not units and not inner:
        units = None
    roots = [one for one in wraps if not one.is_inner and one.call.args]
    made = [chain for one in roots for chain in _built(one, sources)]
    return not made or any(may_end_in(one, classes, units, frozenset(wrapped)) for one in made)


def _built(wrap: _Wrap, sources: list[bytes]) -> list[tuple[str, ...]]:
    """The classes of the module that ``wrap`` is given, as far as one name is followed; empty ones where unknown."""
    text = text_of(wrap.call.args[0])
    if text is None:
        return [chain_of(wrap.call.args[0])]
    nodes = (node for source in sources for node in walk(parsed(source)))
    values = [value for node in nodes for target, value in assigned(node) if text_of(target) == text]
    made = [chain_of(one) for one in values if one is not wrap.call and text_of(one) is None]
    return [one for one in made if one[0:1] != (CONSTRUCTOR,)] or [()]
