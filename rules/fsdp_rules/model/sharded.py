"""Is this a sharded model, here? The one question of all rules, with its answer and the reason for it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

import libcst as cst

from fsdp_rules.file.expressions import element_text, is_repeatable, last_name, named_member
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.file.reads import is_read
from fsdp_rules.model.containing import containing
from fsdp_rules.model.flowing import is_raw, known_as, other_model, value_of
from fsdp_rules.model.given_by_call import FOREIGN, is_given_by_call
from fsdp_rules.model.guards import Guard, fsdp1_guard, is_in_ddp_mode, is_ruled_out
from fsdp_rules.model.just_made import is_just_made
from fsdp_rules.model.run_evidence import run_says
from fsdp_rules.model.wrapping import is_comprehended, sharding_statements, wrapping_call, wrapping_statements
from fsdp_rules.project.observed import MODEL, PART
from fsdp_rules.project.project import INNER, Certainty


class Why(enum.Enum):
    """What an answer rests on."""

    ABOVE = "its function wraps it earlier, on every path to this place"
    FOLLOWED = "a wrapped model is followed to this name"
    LATER = "its function wraps it only later"
    ASKED = "a test around it says that it is an FSDP1 model"
    MADE = "its function has just made it, and nothing has wrapped it since"
    TESTED = "a test around it says that it is another object"
    RAN = "the traced run shows a sharded model here"
    RAN_OTHER = "the traced run shows another object here"
    OTHER = "only objects that are not modules reach it"
    UNKNOWN = "nothing is known about it"


@dataclass(frozen=True)
class Sharded:
    """How sure it is that an expression is a sharded model at a place, and why.

    ``wraps`` are the statements of its own function that wrap it; ``is_made_here`` where some do, or shard it by FSDP2.
    ``foreign``: its name, or a project that has no FSDP1, speaks for an object of another library, however much the
    name of its method is FSDP1's.
    """

    certainty: Certainty
    why: Why
    wraps: tuple[cst.Assign, ...] = ()
    foreign: bool = False
    is_made_here: bool = False

    @property
    def is_decided(self) -> bool:
        """Whether the place itself says that this is no sharded model, whatever it is elsewhere."""
        return self.why in (Why.LATER, Why.MADE, Why.TESTED, Why.OTHER, Why.RAN_OTHER)

    @property
    def is_sure_here(self) -> bool:
        """Whether the place itself says that this is a sharded model, whichever way the program has come there."""
        return self.why in (Why.ABOVE, Why.ASKED)

    @property
    def is_excluded(self) -> bool:
        """Whether it is no sharded model, even for a rule that goes by the name of a method alone."""
        return self.foreign or self.why in (Why.LATER, Why.OTHER, Why.RAN_OTHER)


@once
def sharded(node: cst.BaseExpression, file: File) -> Sharded:
    """Whether the expression ``node`` is a sharded model.

    What stands above the wrap in the function that wraps is not sharded yet, unless a loop around both leads back to
    it, or a caller hands in a model that is.
    """
    return _by_run(sharded_by_code(node, file), node, file)


def _by_run(found: Sharded, node: cst.BaseExpression, file: File) -> Sharded:
    """``found``, or what a traced run shows of ``node``, which is stronger."""
    match run_says(node, file, MODEL):
        case None:
            return found
        case Certainty.YES:
            # What the code says of a model that surely is one is true in every run.
            return (
                found
                if found.certainty is Certainty.YES
                else replace(found, certainty=Certainty.YES, why=Why.RAN, foreign=False)
            )
        case Certainty.NO:
            return replace(found, certainty=Certainty.NO, why=Why.RAN_OTHER)
        case _:
            return replace(found, certainty=Certainty.MAYBE, why=Why.RAN, foreign=False)


def sharded_by_code(node: cst.BaseExpression, file: File) -> Sharded:
    """As :func:`sharded`, for what the code alone says."""
    named: cst.BaseExpression = node
    while isinstance(named, cst.Subscript | cst.Await) and named_member(named) is None:
        named = named.value if isinstance(named, cst.Subscript) else named.expression
    text, fact = element_text(named), value_of(node, file)
    # What is done to a container may be done to what it has.
    flowing = max(fact.model, min(fact.models, Certainty.MAYBE))
    if not is_repeatable(node):
        # Whether it may be called a second time is not known.
        flowing = min(flowing, Certainty.MAYBE)
    held = flowing
    guard = fsdp1_guard(named, text, file) if held is not Certainty.YES and text is not None else Guard.NONE
    if guard is Guard.FSDP1 or (guard is Guard.MIXED and held is Certainty.NO):
        return Sharded(Certainty.YES if guard is Guard.FSDP1 else Certainty.MAYBE, Why.ASKED)
    foreign = held is not Certainty.YES and _is_foreign(node, held, file)
    if known_as("other", node, file):
        return Sharded(Certainty.NO, Why.OTHER, foreign=foreign)
    if text is None:
        why = Why.FOLLOWED if held is not Certainty.NO else Why.LATER if is_raw(node, file) else Why.UNKNOWN
        return Sharded(held, why, foreign=foreign)
    own = is_comprehended(named, text.partition(".")[0], file)
    # What is no model in FSDP1's class may still be a part of one.
    is_part = held is Certainty.NO and value_of(node, file).part is not Certainty.NO
    is_excluded = known_as("excluded", node, file)
    if (not is_part and is_ruled_out(named, text, file)) or (held is Certainty.NO and is_excluded):
        return Sharded(Certainty.NO, Why.TESTED, foreign=foreign)
    if held is Certainty.NO:
        later = is_raw(node, file) or (not own and _is_sharded_later(named, text, file))
        return Sharded(Certainty.NO, Why.LATER if later else Why.UNKNOWN, foreign=foreign)
    if is_excluded or (other_model(named, file) is not Certainty.NO and is_in_ddp_mode(named, file)):
        return Sharded(Certainty.NO, Why.TESTED, foreign=foreign)
    if flowing is not Certainty.YES and is_just_made(named, named, file):
        return Sharded(Certainty.NO, Why.MADE, foreign=foreign)
    return _ordered(named, text, Sharded(held, Why.FOLLOWED, foreign=foreign), own, file)


def _ordered(named: cst.BaseExpression, text: str, found: Sharded, own: bool, file: File) -> Sharded:
    """``found`` of what is called ``text``, where the wraps of its function are above or below.

    ``own``: it is the variable of a comprehension, which no statement wraps.
    """
    outer = text
    while outer.endswith(INNER):
        outer = outer.rpartition(".")[0]
    # The values of a variable are those of the place: no line above or below says more.
    is_settled = isinstance(named, cst.Name) and value_of(named, file).model is not Certainty.NO
    maybe = replace(found, certainty=min(found.certainty, Certainty.MAYBE))
    wraps = tuple(wrapping_statements(outer, file.scope(named), file))
    # A first run leaves some wraps as they are, and shards with FSDP2 where the others were.
    known = (*wraps, *sharding_statements(outer, file.scope(named), file))
    if known and not is_settled and not any(_may_have_run(wrap, named, outer, file) for wrap in known):
        if own:
            return maybe
        return replace(found, certainty=Certainty.NO, why=Why.LATER, wraps=wraps, is_made_here=True)
    above = any(_has_run(wrap, named, file) for wrap in wraps)
    return replace(found, why=Why.ABOVE if above else Why.FOLLOWED, wraps=wraps, is_made_here=bool(known))


def wrapper_of(node: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """The model of which ``node`` is the module inside, as in ``model.module``; None for any other expression."""
    made = file.objects.origin(node)
    return made.value if isinstance(made, cst.Attribute) and f".{made.attr.value}" in INNER else None


def sharded_value(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node``, a name or what a call gives, is a sharded model: for rules that edit nothing."""
    found = sharded(node, file)
    if found.certainty is Certainty.NO and not found.is_decided and is_given_by_call(node, file):
        return Certainty.MAYBE
    return found.certainty


def sharded_source(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that the parameters of ``node`` are those of a sharded model, or of a part of one."""
    return max(sharded_value(node, file), sharded_part(node, file))


def sharded_owner(node: cst.BaseExpression, file: File) -> cst.BaseExpression | None:
    """What is surely a sharded model: ``node``, or what it is a part of; None where neither is."""
    for one in (node, *containing(node, file)):
        if sharded(one, file).certainty is Certainty.YES:
            return one
    return None


def is_wrapped_around(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is, or is a part of, what some wrap is given further on."""
    return any(is_raw(one, file) for one in (node, *containing(node, file)))


def sharded_part(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node`` is a sharded model, or a part of one."""
    if (by_run := run_says(node, file, PART)) is not None:
        return by_run
    held, decided = Certainty.NO, False
    if known_as("other", node, file):
        return held
    for one in (node, *containing(node, file)):
        answer = sharded(one, file)
        found, decided = answer.certainty, decided or answer.is_decided
        # An object is a model by the name of its method alone: its attributes are those of any module.
        if found is Certainty.YES or not isinstance(one, cst.Name) or one.value not in ("self", "cls"):
            held = max(held, found)
        if held is Certainty.NO and is_given_by_call(one, file):
            held = Certainty.MAYBE
    return held if decided else max(held, min(value_of(node, file).part, Certainty.MAYBE))


def sharded_names(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that FSDP1's prefix was in names of what ``node`` has: in a part's, if units are in the part.

    What is no model itself and gives parameters of one has units inside.
    """
    held = sharded_value(node, file)
    if held is Certainty.NO and sharded_part(node, file) is not Certainty.NO:
        return Certainty.MAYBE
    method = file.parent(node)
    call = file.parent(method) if isinstance(method, cst.Attribute) else None
    given = value_of(call, file).parameters if isinstance(call, cst.Call) else Certainty.NO
    return given if held is Certainty.NO else held


def _is_foreign(node: cst.BaseExpression, held: Certainty, file: File) -> bool:
    if "fsdp1" not in file.project.flags:
        return True
    name = last_name(node)
    if name in ("self", "cls", "super") or FOREIGN.search(name):
        return True
    return held is Certainty.NO and file.resolved(node) is not None and "model" not in name.lower()


def _is_sharded_later(node: cst.BaseExpression, text: str, file: File) -> bool:
    """Whether the function wraps or shards the model called ``text``, and does that further down alone."""
    found = sharding_statements(text, file.scope(node), file)
    return bool(found) and not any(_may_have_run(entry, node, text, file) for entry in found)


def _may_have_run(wrap: cst.CSTNode, place: cst.CSTNode, name: str, file: File) -> bool:
    """Whether ``wrap``, of the same function, stands above ``place``, or in a loop that leads back to it."""
    around = (place, *file.ancestors(place))
    if wrap in around:
        return place is wrap
    line = file.span(file.statement(place)).line
    if file.span(wrap).line < line:
        return True
    loops = [entry for entry in file.ancestors(wrap) if isinstance(entry, cst.For | cst.While) and entry in around]
    return any(not _is_made_anew(loop, line, name, file) for loop in loops[:1])


def _is_made_anew(loop: cst.For | cst.While, line: int, name: str, file: File) -> bool:
    """Whether ``loop`` gives ``name`` another value above ``line``, each time that it comes by."""
    return any(
        file.span(entry).line < line
        and any(dotted(target.target) == name for target in entry.targets)
        and not _is_made_of(name, entry.value, file)
        for entry in file.inside(loop.body, cst.Assign)
    )


def _is_made_of(name: str, value: cst.BaseExpression, file: File) -> bool:
    """Whether ``value`` is made of what ``name`` is already: ``model.module``, ``model.to(device)``, ``f(model)``."""
    parts = (*file.inside(value, cst.Name), *file.inside(value, cst.Attribute))
    return any(dotted(one) == name and is_read(one, file.layout) for one in parts)


def _has_run(wrap: cst.Assign, place: cst.CSTNode, file: File) -> bool:
    """Whether ``wrap`` stands above ``place`` in the same function, on every way to it, and surely wraps."""
    if wrapping_call(wrap.value, file) is None or isinstance(wrap.value, cst.IfExp):
        return False
    around = set(file.ancestors(place))
    blocks = (entry for entry in file.ancestors(wrap) if isinstance(entry, cst.BaseCompoundStatement | cst.Else))
    return file.span(wrap).line < file.span(place).line and all(block in around for block in blocks)
