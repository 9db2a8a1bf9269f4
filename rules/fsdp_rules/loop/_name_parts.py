"""Parts of names that a program counts or looks for: FSDP1 put one more in where a unit begins."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import called_on, last_name, only_key
from fsdp_rules.file.file import File
from fsdp_rules.loop._names import is_of_prefix
from fsdp_rules.model.member_names import Named, prefixed
from fsdp_rules.model.wrap_given import flattened, wrap_given
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.value_facts import NONE
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

#: An index and what is inside of the module there, in a text or in a regular expression.
ACROSS = re.compile(r"((?<!\w)\d+|\\d[+*]?|\][+*]?)[)}]*\\?\.[A-Za-z_(\[]")
MATCHING = frozenset({"findall", "fullmatch", "match", "search"})
#: Of these, what matches at the beginning of a text alone, and a pattern that says what that is.
ANCHORED = frozenset({"fullmatch", "match"})
BEGINS = re.compile(r"[\^(?:]*[A-Za-z]")
#: Functions that match a whole text with a pattern as of files, and what lets such a pattern begin with anything.
GLOBS = frozenset({"fnmatch", "fnmatchcase"})
OPEN = ("", "*", "?", "[")
NEVER = "this matched no FSDP1 name because of the prefix, and can match now"
HAD = "the prefix of FSDP1 names contains this, and these names have no prefix"
CURE = "to keep the numbers, treat these names as before. To get the intended behaviour, keep the line"


def about_parts(node: cst.Call, file: File) -> Iterator[Diagnosis]:
    """The verdict about ``name.split(".")`` whose parts are counted, and about patterns that names are matched with."""
    func = node.func
    if last_name(func) in GLOBS and len(node.args) == 2:
        name, glob = (argument.value for argument in node.args)
        named = prefixed(name, file)
        if named is not None and isinstance(glob, cst.SimpleString) and glob.raw_value[:1] not in OPEN:
            yield _diagnosis(glob, named, NEVER, CURE)
    if not isinstance(func, cst.Attribute):
        return
    if func.attr.value in ("count", "partition", "split") and _is_dot(node):
        held = prefixed(func.value, file)
        if held is not None and (func.attr.value != "split" or _counts(node, file)):
            message = "FSDP1 names had other parts: a prefix before each unit was one of them"
            yield _diagnosis(node, held, message, "here, count the parts of names without prefixes")
    elif func.attr.value in MATCHING:
        texts = [*node.args[:1], *_compiled(func.value, file)]
        pattern = next((one.value for one in texts if isinstance(one.value, cst.SimpleString)), None)
        for argument in node.args[-1:] if pattern is None else node.args:
            found = prefixed(argument.value, file)
            if pattern is None or found is None:
                continue
            if is_of_prefix(pattern):
                yield _diagnosis(pattern, found, HAD, CURE)
            elif _is_anchored(func.attr.value, pattern):
                yield _diagnosis(pattern, found, NEVER, CURE)
            elif _is_across(pattern, found, file):
                yield _across(pattern, found)


def about_text(text: cst.SimpleString, file: File) -> Iterator[Diagnosis]:
    """The verdict about ``text`` where it is looked for in names of a sharded model's parameters, or at their end."""
    found = _looked_for_in(text, file)
    held = prefixed(found, file) if found is not None else None
    if held is not None and is_of_prefix(text):
        yield _diagnosis(text, held, HAD, CURE)
    elif held is not None and _is_across(text, held, file):
        yield _across(text, held)


def _is_anchored(method: str, pattern: cst.SimpleString) -> bool:
    """Whether ``pattern`` matches at the beginning of a name alone, and says what the name begins with."""
    text = pattern.raw_value
    return (method in ANCHORED or text.startswith("^")) and BEGINS.match(text) is not None


def _across(text: cst.SimpleString, named: Named) -> Diagnosis:
    message = f"if a unit begins inside {text.value}, FSDP1 names had a prefix and did not match"
    return _diagnosis(text, named, message, CURE)


def _diagnosis(node: cst.CSTNode, named: Named, message: str, advice: str) -> Diagnosis:
    if named.held is Certainty.YES:
        return Diagnosis(node, Level.MANUAL, message, advice)
    return Diagnosis(node, Level.REVIEW, f"if this model is sharded, {message}", advice)


def _is_across(text: cst.SimpleString, named: Named, file: File) -> bool:
    """Whether ``text`` may have the begin of a unit inside; what has flat parameters is FSDP233's."""
    if ACROSS.search(text.raw_value) is None or flattened(named.model, file) is Certainty.YES:
        return False
    return wrap_given(named.model, file).texts("auto_wrap_policy") != {NONE}


def _is_dot(call: cst.Call) -> bool:
    value = call.args[0].value if call.args else None
    return isinstance(value, cst.SimpleString) and value.raw_value == "."


def _counts(split: cst.Call, file: File) -> bool:
    """Whether the parts that ``split`` gives are used by their places from the left, or by how many they are."""
    uses: list[cst.BaseExpression] = [split]
    anchor = file.parent(split)
    target = anchor.targets[0].target if isinstance(anchor, cst.Assign) else None
    if isinstance(target, cst.Tuple | cst.List):
        return True
    if isinstance(target, cst.Name):
        scope = file.scope(split)
        uses = [use for use in file.uses(target.value) if file.scope(use) == scope]
    return any(_is_counted(use, file) for use in uses)


def _is_counted(use: cst.BaseExpression, file: File) -> bool:
    parent = file.parent(use)
    if isinstance(parent, cst.Arg):
        call = file.parent(parent)
        return (
            isinstance(call, cst.Call) and isinstance(call.func, cst.Name) and call.func.value in ("enumerate", "len")
        )
    if not isinstance(parent, cst.Subscript) or parent.value is not use:
        return False
    key = only_key(parent)
    return key is None or file.code(key).replace(" ", "") != "-1"


def _looked_for_in(text: cst.SimpleString, file: File) -> cst.BaseExpression | None:
    """What ``text in ...`` or ``....endswith(text)`` looks into."""
    parent = file.parent(text)
    if isinstance(parent, cst.Comparison) and parent.left is text:
        first = parent.comparisons[0]
        return first.comparator if isinstance(first.operator, cst.In | cst.NotIn) else None
    while isinstance(parent, cst.Element | cst.Tuple):
        parent = file.parent(parent)
    call = file.parent(parent) if isinstance(parent, cst.Arg) else None
    return called_on(call, "endswith")


def _compiled(pattern: cst.BaseExpression, file: File) -> list[cst.Arg]:
    value = file.value(pattern)
    is_compiled = isinstance(value, cst.Call) and file.code(value.func).endswith("compile")
    return list(value.args[:1]) if isinstance(value, cst.Call) and is_compiled else []
