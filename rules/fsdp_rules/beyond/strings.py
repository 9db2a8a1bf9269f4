"""Rule for FSDP1's names inside strings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.class_tests import name_test, subject_of_name
from fsdp_rules.file.expressions import given_to, last_name, literal_text
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.type_places import in_annotation
from fsdp_rules.fsdp1.names import FSDP, FSDP1_NAMES, FSDP_PACKAGE, PUBLIC_MODULES, canonical
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import UNCHECKED

#: How a string of interest starts, which is cheap to ask of every string of a file.
STARTS = (FSDP_PACKAGE, FSDP)
#: Calls that put something else in the place of a name of a module.
PATCHES = re.compile(r"(^|\.)(patch|patch\.object|setattr|object)$")
IMPORTERS = frozenset({"importlib.import_module", "__import__"})
#: What is asked of a text, with another.
ASKS = frozenset(
    {"count", "endswith", "find", "findall", "fnmatch", "fullmatch", "index", "match", "search", "startswith"}
)
#: What holds the name of a class, and not a choice of a configuration.
NAMED = re.compile(r"name|class|cls|type|repr|str\(", re.IGNORECASE)


class NamesInStrings(Rule):
    """FSDP1 names in strings.

    `importlib.import_module("torch.distributed.fsdp")`, `getattr(module, "FullyShardedDataParallel")` and class paths
    in configuration reach FSDP1 without an import. This tool cannot see how such names are used, so it lists them. With
    `--to shim`, paths point to `fsdp_compat`, which has all of FSDP1's names. Text such as a profiler event or a
    printed model no longer contains the class name: FSDP2 puts FSDP before the model's own class name.
    """

    id = "FSDP904"
    name = "name-in-string"
    what_to_test = UNCHECKED
    visits = (cst.SimpleString, cst.Attribute)
    shim = True
    before = """
WRAPPER = "torch.distributed.fsdp.FullyShardedDataParallel"
"""
    after = """
# TODO(fsdp-migrate FSDP904): this string is the path of FSDP1's FullyShardedDataParallel: its use is not visible here
WRAPPER = "torch.distributed.fsdp.FullyShardedDataParallel"
"""

    def visit(self, node: cst.SimpleString | cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """Look at whole strings, and at FSDP1's class as an attribute of something that no import names."""
        if isinstance(node, cst.Attribute):
            yield from self._attribute(node, file)
        else:
            text = node.evaluated_value
            if isinstance(text, str) and text.startswith(STARTS) and not _is_about_something_else(node, file):
                yield from self._string(node, text, file)
            if isinstance(text, str) and FSDP in text and "fsdp1" in file.project.flags and _is_searched(node, file):
                yield Diagnosis(
                    node,
                    Level.REVIEW,
                    f"assumes this text is not compared with the class name of a sharded module, which is no longer "
                    f"{FSDP}",
                    "test isinstance(module, FSDPModule), or search for the name of the model's own class: the new "
                    "class name still contains it",
                )
            elif isinstance(text, str) and file.settings.to != "shim" and (moved := _patched(node, text, file)):
                yield Diagnosis(
                    node,
                    Level.MANUAL,
                    f"this replaces {moved} in another module, which no longer has that name",
                    "replace fully_shard there: it shards in place and returns the same module",
                )

    def _string(self, node: cst.SimpleString, text: str, file: File) -> Iterator[Diagnosis]:
        known = canonical(text)
        if text in PUBLIC_MODULES:
            if _is_imported(node, file):
                yield self._path(node, "fsdp_compat", "this imports FSDP1's module", file)
        elif known in FSDP1_NAMES:
            said = f"this string is the path of FSDP1's {known}"
            yield self._path(node, f"fsdp_compat.{known}", said, file)
        elif text == FSDP and _is_looked_up(node, file) and file.settings.to != "shim":
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"this searches a module or an object for {FSDP} by name",
                "call fully_shard where the class was called, and test isinstance(module, FSDPModule)",
            )

    def _path(self, node: cst.SimpleString, new: str, said: str, file: File) -> Diagnosis:
        if file.settings.to == "shim":
            text = f"{node.prefix}{node.quote}{new}{node.quote}"
            return Diagnosis(
                node,
                Level.REVIEW,
                f"this string is now {new}, assuming the code that reads this path imports it",
                edits=(Replace(node, lambda code: text),),
            )
        return Diagnosis(
            node,
            Level.MANUAL,
            f"{said}: its use is not visible here",
            "call fully_shard where the class is called, or use --to shim, which changes the string to "
            "fsdp_compat's class",
        )

    def _attribute(self, node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
        if node.attr.value != FSDP or file.fsdp1(node) is not None or "fsdp1" not in file.project.flags:
            return
        base = file.value(node.value)
        if isinstance(base, cst.Call) and any(literal_text(argument.value) in PUBLIC_MODULES for argument in base.args):
            return
        if not isinstance(node.value, cst.Name) or node.value.value in file.aliases:
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            f"{dotted(node)} may be FSDP1's class, but this tool cannot see where it comes from",
            "import the class from torch.distributed.fsdp by name, then run this tool again",
        )


def _patched(node: cst.SimpleString, text: str, file: File) -> str | None:
    """FSDP1's name that a test replaces in a module of the project: ``patch("pkg.train.FSDP")``, ``setattr``."""
    call = given_to(node, file)
    if call is None or not PATCHES.search(dotted(call.func) or ""):
        return None
    if text.isidentifier():
        owner = call.args[0].value
        module = file.resolved(owner) if isinstance(owner, cst.Name | cst.Attribute) else None
        text = f"{module}.{text}" if module is not None else ""
    known = canonical(file.project.resolve(text)) if "." in text else None
    return known if known in FSDP1_NAMES else None


def _is_searched(node: cst.SimpleString, file: File) -> bool:
    """Whether the string is looked for in another text, or compared with one that may be the name of a class."""
    parent = file.parent(node)
    if isinstance(parent, cst.Arg):
        call = file.parent(parent)
        return isinstance(call, cst.Call) and last_name(call.func) in ASKS
    if isinstance(parent, cst.Element):
        parent = file.parent(file.parent(parent) or parent)
    test = file.parent(parent) if isinstance(parent, cst.ComparisonTarget) else parent
    if not isinstance(test, cst.Comparison) or name_test(test) is not None or len(test.comparisons) != 1:
        return False
    other = test.left if isinstance(parent, cst.ComparisonTarget) else test.comparisons[0].comparator
    is_within = isinstance(test.comparisons[0].operator, cst.In | cst.NotIn) and test.left is node
    return subject_of_name(file.value(other)) is None and (is_within or NAMED.search(file.code(other)) is not None)


def _is_about_something_else(node: cst.SimpleString, file: File) -> bool:
    """Whether the string is documentation, an annotation, a name in ``__all__``, or part of a class name's test."""
    if in_annotation(node, file) or isinstance(file.parent(node), cst.Expr):
        return True
    for ancestor in file.ancestors(node):
        if isinstance(ancestor, cst.Comparison) and name_test(ancestor) is not None:
            return True
        if isinstance(ancestor, cst.Assign):
            return any(dotted(target.target) == "__all__" for target in ancestor.targets)
        if isinstance(ancestor, cst.BaseStatement):
            return False
    return False


def _is_imported(node: cst.SimpleString, file: File) -> bool:
    call = given_to(node, file)
    return call is not None and (file.resolved(call.func) or dotted(call.func)) in IMPORTERS


def _is_looked_up(node: cst.SimpleString, file: File) -> bool:
    call = given_to(node, file)
    return call is not None and dotted(call.func) in ("getattr", "hasattr")
