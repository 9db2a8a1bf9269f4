"""Names of classes that are compared, searched or looked up: a sharded module's is another one under FSDP2."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.class_tests import is_bare_name, name_test, subject_of_class, subject_of_name
from fsdp_rules.file.expressions import calls_plainly, elements, given_to, last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._module_counts import SHOWS
from fsdp_rules.loop._own_class import as_text, is_in_text, is_inner, of_inner, unprefixed
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

#: What the names of sharded modules' classes begin with.
OWN = re.compile("FSDP|Fully")
#: What is asked of a text, and what gives another text to ask it of.
ASKS = frozenset(
    {
        *("casefold", "count", "endswith", "find", "index", "lower", "partition", "removeprefix", "removesuffix"),
        *("replace", "rpartition", "rsplit", "split", "startswith", "strip", "upper"),
    }
)
LOOKS_UP = frozenset({"fullmatch", "get", "match", "pop", "search"})
ADVICE = "test isinstance(..., FSDPModule), or the model's own class, which the sharded module extends"
#: A name that a key or a file name is formed of.
KEPT = "assumes no lookup uses {text}, which is now FSDP plus the model's class name (FSDPNet for a Net)"
MAY_BE = "assumes {text} is not sharded by itself: FSDP2 changes the class of a unit and adds FSDP to its name"
BASES = "if {text} is sharded, its classes no longer include FSDP1's wrapper, and now include the module's own"
OWN_NAME = "read the name before the model is sharded, or write it as a string"


def compared_names(node: cst.BaseExpression, file: File) -> Iterator[Diagnosis]:
    """What to say where ``node`` is a sharded module's class or its name, and the program hangs on which one it is."""
    name = subject_of_name(node)
    subject = name or subject_of_class(node)
    if subject is None or _is_of_name(node, file):
        return
    if _gives_bases(node, file):
        if sharded(subject, file).certainty is not Certainty.NO:
            yield Diagnosis(node, Level.MANUAL, BASES.format(text=file.code(subject)), ADVICE)
        return
    asked = _is_asked(node, file)
    if asked or (_is_kept(node, file) if name is not None or is_in_text(node, file) else _is_key(node, file)):
        yield from _class_or_name(node, subject, name is not None, asked, file)


def _class_or_name(
    node: cst.BaseExpression, subject: cst.BaseExpression, named: bool, asked: bool, file: File
) -> Iterator[Diagnosis]:
    shim = file.settings.to == "shim"
    found = sharded(subject, file)
    if is_inner(subject, file):
        # The names of fsdp_compat's classes are those of the modules.
        if not (shim and (named or is_in_text(node, file))):
            yield of_inner(node, subject, file)
        return
    part = found.certainty is Certainty.NO and known_as("member", subject, file)
    if found.certainty is Certainty.YES:
        yield from _of_wrapper(node, subject, named, asked, file)
    elif found.certainty is Certainty.MAYBE or part:
        if named and not shim and is_bare_name(node):
            yield unprefixed(node, subject, file)
        elif not (named and shim) and (asked or not part):
            yield Diagnosis(node, Level.REVIEW, MAY_BE.format(text=file.code(subject)), ADVICE)


def _of_wrapper(
    node: cst.BaseExpression, subject: cst.BaseExpression, named: bool, asked: bool, file: File
) -> Iterator[Diagnosis]:
    """What to say of the class of ``subject``, which is FSDP1's wrapper itself."""
    text = file.code(subject)
    if named and not _is_compared(node, file) and (edit := as_text(node, subject, file)) is not None:
        yield edit
    elif asked and (named or not _is_compared(node, file)):
        if not _is_of_others(node, file):
            message = f"the class of {text} was FullyShardedDataParallel, and is now FSDP plus the model's class name"
            yield Diagnosis(node, Level.MANUAL, message, ADVICE)
    elif not asked:
        yield Diagnosis(node, Level.REVIEW, KEPT.format(text=file.code(node)), OWN_NAME)


def _gives_bases(node: cst.BaseExpression, file: File) -> bool:
    """Whether the classes that ``node`` extends are read from it."""
    parent = file.parent(node)
    if (call := given_to(node, file)) is not None:
        return file.resolved(call.func) == "inspect.getmro"
    return isinstance(parent, cst.Attribute) and parent.value is node and parent.attr.value in ("__mro__", "mro")


def _is_of_name(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is the class in ``type(x).__name__`` or ``str(type(x))``, which is looked at as a whole."""
    parent = file.parent(node)
    whole = file.parent(parent) if isinstance(parent, cst.Arg) else parent
    return isinstance(whole, cst.BaseExpression) and subject_of_name(whole) is not None


def _is_key(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is a class that something is kept by, or that an object is tested for."""
    parent = file.parent(node)
    if isinstance(parent, cst.Arg):
        call = file.parent(parent)
        return isinstance(call, cst.Call) and calls_plainly(call, ("isinstance",), 2) and call.args[1] is parent
    return isinstance(parent, cst.DictElement) and parent.key is node


def _is_compared(node: cst.BaseExpression, file: File) -> bool:
    parent = file.parent(node)
    return isinstance(parent, cst.Comparison | cst.ComparisonTarget | cst.Attribute)


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
    # The parts of a comprehension itself are what it makes; what it runs over and asks is below its ``for``.
    return isinstance(parent, cst.Assign | cst.BaseComp | cst.DictElement | cst.Element | cst.Index | cst.Return)


_TEXTS = (cst.BinaryOperation, cst.ConcatenatedString, cst.FormattedString, cst.FormattedStringExpression)
