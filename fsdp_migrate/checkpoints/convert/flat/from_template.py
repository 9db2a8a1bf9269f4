"""Where parameters lie in a flat parameter, told by a template's names, shapes and order, and by the total alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.checkpoints.convert.flat import layout
from fsdp_migrate.checkpoints.convert.flat.layout import Member
from fsdp_migrate.checkpoints.convert.flat.template import ADVICE, Template
from fsdp_migrate.checkpoints.convert.flat.units import Unit
from fsdp_migrate.checkpoints.convert.state import CannotConvert

#: Why names and shapes without an order are not enough.
WHY_ORDER = (
    "in a different order, elements would silently be assigned to other parameters (k_proj to v_proj, for example)"
)


@dataclass(frozen=True)
class Solution:
    """``starts`` by name, and further names of parameters in it; ``notes`` say what was assumed."""

    starts: layout.Starts
    ties: Mapping[str, str]
    notes: Sequence[str] = ()


def solved(path: Path, unit: Unit, members: Sequence[Member], template: Template) -> Solution:
    """The one way in which ``members``, in their order, fill the flat parameter of the unit.

    Members that the template finds alike are assumed to be tied where they fit in no other way. Raises
    :class:`CannotConvert` where there is no way or more than one, or no order.
    """
    if len(members) > 1 and not template.ordered:
        raise CannotConvert(
            f"{path}: {unit.name} has {len(members)} parameters, and {template.where} does not contain their "
            f"order; {WHY_ORDER}. {ADVICE}"
        )
    ways = _ways(unit, members)
    if len(ways) == 1:
        return Solution(ways[0], template.ties)
    alike = _alike(members, template)
    fewer = [member for member in members if member.name not in alike]
    tied = _ways(unit, fewer) if alike and not ways else []
    if len(tied) == 1:
        notes = [
            f"assumes {name} is tied to {first}: they have equal elements in {template.where}, and only then "
            f"do the parameters fit {unit.name}"
            for name, first in alike.items()
        ]
        return Solution(tied[0], {**template.ties, **alike}, notes)
    why = _why(unit, fewer, template, tied) if tied else _why(unit, members, template, ways)
    raise CannotConvert(f"{path}: {unit.name} has {unit.flat.numel} elements, {why}")


def _ways(unit: Unit, members: Sequence[Member]) -> list[layout.Starts]:
    return layout.fitting(members, unit.flat.numel, layout.shard_count(unit.flat), unit.flat.dtype)


def _alike(members: Sequence[Member], template: Template) -> dict[str, str]:
    names = {member.name for member in members}
    return {name: first for name, first in template.alike.items() if {name, first} <= names}


def _why(unit: Unit, members: Sequence[Member], template: Template, ways: Sequence[layout.Starts]) -> str:
    named = [member.name for member in members]
    shown = ", ".join(named if len(named) < 5 else (*named[:2], "…", *named[-2:])) or "none"
    said = f"and the {len(members)} parameters that {template.where} has for it ({shown})"
    if ways:
        return f"{said} fill it in more than one way; pass a template that separates parameters and buffers. {ADVICE}"
    sizes = layout.ends(members, layout.shard_count(unit.flat), unit.flat.dtype)
    advice = "" if template.parameters_only else "it may have buffers, which are not parameters; "
    for first, second in _twins(members, template):
        if _ways(unit, [member for member in members if member.name != second]):
            advice = f"if {first} and {second} are tied, say so in the template or leave out {second}; "
            break
    return (
        f"{said} take {' or '.join(map(str, sizes))}: it belongs to another model, or to one that is wrapped "
        f"differently; "
        f"{advice}{ADVICE}"
    )


def _twins(members: Sequence[Member], template: Template) -> Iterator[tuple[str, str]]:
    """Names of parameters of one shape, which may be tied."""
    first: dict[tuple[int, ...], str] = {}
    for member in members:
        shape = template.shapes[member.name]
        if first.setdefault(shape, member.name) != member.name:
            yield first[shape], member.name
