"""Programs that mean the same: the example of each rule under transformations that keep its meaning."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Unchanged
from fsdp_rules.verdict.rule import Rule
from tests.fuzz import same_programs, same_values
from tests.fuzz.same_values import MAIN, Files, Transformation, called, lines, options, rest, use, value
from tests.rules.helpers import rewrite_tree

#: The silent losses by transformation and rule, with the number of programs.
RECORD = Path(__file__).with_name("metamorphic_losses.json")
#: Rules that go by the name itself are no loss where it is another one.
_BY_NAME = {"FSDP122", "FSDP125", "FSDP214", "FSDP316"}
_GRAVITY = (Level.INFO, Level.SAFE, Level.REVIEW, Level.MANUAL)
_SAME = "def same(given):\n    return given\n"
_NOTHING = "from contextlib import nullcontext"
_TOOLS = "import functools"

TRANSFORMATIONS: Mapping[str, Transformation] = {
    "rename": same_values.rename,
    "alias": same_values.alias,
    "alias of a parameter": same_values.alias_of_a_parameter,
    "helper": same_programs.helper,
    "helper in another file": same_programs.helper_elsewhere,
    "helper as a static method": same_programs.method_helper,
    "closure": same_programs.closure,
    "identity of the value": value("same(_)", _SAME),
    "identity of a use": use("same(_)", _SAME),
    "identity after work": value("same(_)", "def same(given):\n    print(type(given))\n    return given\n"),
    "lambda identity": value("(lambda given: given)(_)"),
    "getattr": same_values.getattr_of,
    "getattr of a module": same_values.getattr_of_a_module,
    "options display": options("display"),
    "options call": options("call"),
    "options items": options("items"),
    "star": same_values.star,
    "factory": same_programs.factory,
    "factory in another file": same_programs.factory_elsewhere,
    "factory of a pair": same_programs.factory_of_a_pair,
    "generator": same_programs.generator,
    "class attribute": same_programs.class_attribute,
    "other file": same_programs.other_file,
    "tuple": lines("target, nothing = _, None"),
    "tuple of one": lines("(target,) = (_,)"),
    "item of a tuple": lines("pair = (_, None)\ntarget = pair[0]"),
    "item of a list": lines("many = [_]\ntarget = many[0]"),
    "item of a dictionary": lines("table = {}\ntable['first'] = _\ntarget = table['first']"),
    "attribute of an object": lines(
        "holder = Holder()\nholder.it = _\ntarget = holder.it", "class Holder:\n    pass\n"
    ),
    "walrus": lines("(target := _)"),
    "walrus in a test": rest("if (target := _) is not None:\n    pass"),
    "loop over one": rest("for target in [_]:\n    pass"),
    "with the value": rest("with nullcontext(_) as target:\n    pass", _NOTHING),
    "try around one": same_programs.around_one("try:\n    pass\nexcept ValueError:\n    raise"),
    "try around all": same_programs.around_all("try:\n    pass\nfinally:\n    print('done')"),
    "with around one": same_programs.around_one("with nullcontext():\n    pass", _NOTHING),
    "with around all": same_programs.around_all("with nullcontext():\n    pass", _NOTHING),
    "main": same_programs.main_function,
    "script": same_programs.script,
    "conditional": value("(_ if __debug__ else None)"),
    "partial": called("functools.partial(_)", _TOOLS),
    "function in a tuple": called("(_,)[0]"),
}


@dataclass(frozen=True)
class Loss:
    """A rule that speaks about an example and not about a program that means the same.

    ``is_edit``: all that the rule does there is an edit, which is not made. ``added`` are the rules that leave
    something to do or to review there, and did not in the example.
    """

    rule: str
    transformation: str
    variant: int
    files: Files
    is_edit: bool
    added: frozenset[str]


def variants(rule: Rule, name: str) -> Iterator[Files]:
    """The programs that the transformation ``name`` makes of the example of ``rule``."""
    if not (name == "rename" and rule.id in _BY_NAME):
        yield from TRANSFORMATIONS[name](printed(rule))


def printed(rule: Rule) -> str:
    """The example as it is printed from its syntax tree: what a transformation starts with."""
    return ast.unparse(ast.parse(textwrap.dedent(rule.before))) + "\n"


def speaks(rule: Rule) -> bool:
    """Whether ``rule`` edits, or leaves something to do, in its example as it is printed."""
    return _levels_of(printed(rule)).get(rule.id, Level.INFO) is not Level.INFO


def only_edits(rule: Rule) -> bool:
    """Whether ``rule`` leaves nothing to do or to review in its example."""
    return _levels_of(printed(rule)).get(rule.id) is Level.SAFE


def loss(rule: Rule, name: str, number: int, files: Files) -> Loss | None:
    """What is lost of ``rule`` in ``files``, the variant ``number`` of its example."""
    expected, found = _levels_of(printed(rule)), levels(files)
    is_edit = only_edits(rule)
    if rule.id in (found if is_edit else _left(found)):
        return None
    return Loss(rule.id, name, number, files, is_edit, frozenset(_left(found) - _left(expected)))


@cache
def _levels_of(source: str) -> Mapping[str, Level]:
    return levels({MAIN: source})


def levels(files: Files) -> Mapping[str, Level]:
    """The rules that speak about one of ``files``, each with its gravest level."""
    found: dict[str, Level] = {}
    for finding in _findings(files):
        found[finding.rule] = max(found.get(finding.rule, Level.INFO), finding.level, key=_GRAVITY.index)
    return found


def _left(found: Mapping[str, Level]) -> set[str]:
    return {rule for rule, level in found.items() if level in (Level.REVIEW, Level.MANUAL)}


def _findings(files: Files) -> Iterator[Finding]:
    for path, text in files.items():
        compile(text, path, "exec", dont_inherit=True)
    for path, result in rewrite_tree({path: text.encode() for path, text in files.items()}).items():
        assert isinstance(result, Changed | Unchanged), (path, result)
        yield from result.findings
