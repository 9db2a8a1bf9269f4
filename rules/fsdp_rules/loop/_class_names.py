"""Names of classes that are compared, searched or looked up: a sharded module's is another one under FSDP2."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.class_tests import name_test, subject_of_class, subject_of_name
from fsdp_rules.file.expressions import elements, last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._module_counts import SHOWS
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

#: What the names of sharded modules' classes begin with.
OWN = re.compile("FSDP|Fully")
PARTS = frozenset({"modules", "named_modules"})
#: What is asked of a text, and what gives another text to ask it of.
ASKS = frozenset({"casefold", "count", "endswith", "find", "index", "lower", "replace", "split", "startswith", "upper"})
LOOKS_UP = frozenset({"fullmatch", "get", "match", "pop", "search"})
ADVICE = "test isinstance(..., FSDPModule), or the model's own class, which the sharded module extends"
#: A name that a key or a file name is formed of.
KEPT = "assumes nothing is found by {text}, which is now FSDP with the model's own name (FSDPNet for a Net)"
OWN_NAME = "take the name before the model is sharded, or write it out as a text"


def compared_names(node: cst.BaseExpression, file: File) -> Iterator[Diagnosis]:
    """What to say where ``node`` is the name of a sharded module's class, and the program hangs on its text."""
    name = subject_of_name(node)
    subject = name or subject_of_class(node)
    if subject is None or not _is_asked(node, file):
        if name is not None and _is_kept(node, file) and sharded(name, file).certainty is Certainty.YES:
            yield Diagnosis(node, Level.REVIEW, KEPT.format(text=file.code(node)), OWN_NAME)
        return
    found = sharded(subject, file).certainty
    text = file.code(subject)
    if found is Certainty.NO and _is_part(subject, file):
        found = Certainty.MAYBE
    elif name is None or _is_of_others(node, file):
        return
    if found is Certainty.YES:
        message = f"the class of {text} was FullyShardedDataParallel, and is now FSDP with the model's own name"
        yield Diagnosis(node, Level.MANUAL, message, ADVICE)
    elif found is Certainty.MAYBE:
        message = f"assumes {text} is not sharded by itself: FSDP2 gives a unit another class, FSDP before its name"
        yield Diagnosis(node, Level.REVIEW, message, ADVICE)


def _is_part(subject: cst.BaseExpression, file: File) -> bool:
    """Whether ``subject`` runs over the modules of a sharded model, of which some may be units."""
    if not isinstance(subject, cst.Name):
        return False
    loops = [node for node in file.ancestors(subject) if isinstance(node, cst.For)]
    parts = [node.for_in for node in file.ancestors(subject) if isinstance(node, cst.BaseSimpleComp | cst.DictComp)]
    places: list[cst.For | cst.CompFor] = [*loops, *parts]
    for loop in places:
        names = {name.value for name in file.inside(loop.target, cst.Name)}
        call = loop.iter
        if subject.value in names and isinstance(call, cst.Call) and isinstance(call.func, cst.Attribute):
            model = call.func.value
            return call.func.attr.value in PARTS and sharded(model, file).certainty is not Certainty.NO
    return False


def _is_of_others(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is compared with names that no sharded module has, be it of FSDP1 or of FSDP2."""
    test = file.parent(node)
    test = file.parent(test) if isinstance(test, cst.ComparisonTarget) else test
    if not isinstance(test, cst.Comparison):
        return False
    other = test.comparisons[0].comparator if test.left is node else test.left
    known = elements(other) or [other]
    return all(isinstance(one, cst.SimpleString) and not OWN.search(one.value) for one in known)


def _is_asked(node: cst.BaseExpression, file: File, follows: bool = True) -> bool:
    parent = file.parent(node)
    match parent:
        case cst.Comparison() | cst.ComparisonTarget():
            test = parent if isinstance(parent, cst.Comparison) else file.parent(parent)
            return isinstance(test, cst.Comparison) and name_test(test) is None
        case cst.Attribute():
            return parent.attr.value in ASKS
        case cst.Index() | cst.MatchAs() | cst.Match():
            return True
        case cst.Arg():
            call = file.parent(parent)
            func = call.func if isinstance(call, cst.Call) else None
            return isinstance(func, cst.Attribute) and func.attr.value in LOOKS_UP
        case cst.Assign() if follows:
            names = [entry.target for entry in parent.targets if isinstance(entry.target, cst.Name)]
            return any(
                _is_asked(use, file, follows=False)
                for name in names
                for use in file.uses(name.value)
                if file.scope(use) == file.scope(name) and use is not name
            )
    return False


def _is_kept(node: cst.BaseExpression, file: File, follows: bool = True) -> bool:
    """Whether the name goes further than to a person who reads it: into a key, the name of a file, another object."""
    inner: cst.CSTNode = node
    while isinstance(parent := file.parent(inner), _TEXTS):
        inner = parent
    if isinstance(parent, cst.Arg):
        call = file.parent(parent)
        return not isinstance(call, cst.Call) or SHOWS.fullmatch(last_name(call.func)) is None
    if isinstance(parent, cst.Assign) and follows:
        names = [entry.target for entry in parent.targets if isinstance(entry.target, cst.Name)]
        uses = [use for name in names for use in file.uses(name.value) if file.scope(use) == file.scope(name)]
        return len(names) < len(parent.targets) or any(_is_kept(use, file, follows=False) for use in uses)
    return isinstance(parent, cst.Assign | cst.DictElement | cst.Element | cst.Index | cst.Return)


_TEXTS = (cst.BinaryOperation, cst.ConcatenatedString, cst.FormattedString, cst.FormattedStringExpression)
