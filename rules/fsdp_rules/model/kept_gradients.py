"""Whether FSDP1 keeps a gradient that is cleared between a forward and its backward, by the wraps of a program."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.ending_units import OTHER_POLICIES, unit_classes
from fsdp_rules.model.program_wraps import Wrap, built, has_units, parsed, sources_of, wraps_of
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.endings import may_end_in
from fsdp_rules.project.project import Certainty

#: A policy that gives units strategies of their own.
OWN_STRATEGIES = OTHER_POLICIES[0].encode()


@dataclass(frozen=True)
class Kept:
    """``sure``: how sure it is that some unit keeps its gradient where the model's registered parameters are asked.

    ``by_optimizer``: whether one may keep it where an optimizer clears all of them: a unit whose output is the model's.
    ``wraps`` are those that the model may come from.
    """

    sure: Certainty
    by_optimizer: bool
    wraps: tuple[Wrap, ...] = ()


def kept_gradients(model: cst.BaseExpression | None, file: File) -> Kept:
    """Whether units of ``model``, or of any where it is None, keep gradients that are cleared after their forward.

    FSDP1 does under the strategies that keep units gathered, with ``use_orig_params=True``: what is registered then are
    tensors without gradients, and a unit whose backward starts before the root's has not looked at the optimizer's.
    """
    if "keeps_gathered" not in file.project.flags:
        return Kept(Certainty.NO, False)
    wraps = wraps_of(model, file)
    sure = max((_sure(one, file) for one in wraps), default=Certainty.MAYBE)
    sources = sources_of(file)
    if sure is Certainty.NO and any(OWN_STRATEGIES in source for source in sources):
        originals = (one.given(file).keeps_originals() for one in wraps)
        sure = min(Certainty.MAYBE, max(originals, default=Certainty.MAYBE))
    if not wraps and not any(b"use_orig_params" in source for source in sources):
        sure = Certainty.NO
    return Kept(sure, sure is not Certainty.NO and _may_end_in_unit(wraps, sources, file), tuple(wraps))


def keeps_frozen(model: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``model`` adds what it has when a backward runs through it frozen to its next gradients."""
    return max((one.given(file).keeps_frozen() for one in wraps_of(model, file)), default=Certainty.NO)


def _sure(wrap: Wrap, file: File) -> Certainty:
    given = wrap.given(file)
    return min(given.stays_gathered(), given.keeps_originals())


def _may_end_in_unit(wraps: list[Wrap], sources: list[bytes], file: File) -> bool:
    """Whether one of the models may have units inside, and give what such a unit has given."""
    inner = [one for one in wraps if one.is_inner]
    if not has_units(wraps, sources):
        return not wraps
    wrapped = {text.rpartition(".")[2] for one in inner if (text := text_of(one.target)) is not None}
    known = {name: [one.ends for one in found] for name, found in file.project.parts.classes.items()}
    classes = {**file.project.values.ends, **known}
    units = unit_classes(map(parsed, sources))
    if not units and not inner:
        units = None
    roots = [one for one in wraps if not one.is_inner and one.call.args]
    made = [chain for one in roots for chain in built(one, sources)]
    return not made or any(may_end_in(one, classes, units, frozenset(wrapped)) for one in made)
