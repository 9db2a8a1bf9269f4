"""Rule for the prefixes that FSDP1 puts into parameter names."""

from __future__ import annotations

import re
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.ancestors import branches
from fsdp_rules.file.expressions import given_to
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.loop._name_parts import about_parts, about_text
from fsdp_rules.loop._name_tables import about_table
from fsdp_rules.loop._names import about_comparison
from fsdp_rules.loop._saved_names import about_saved
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

PREFIX = re.compile(r"_fsdp_wrapped_module|_fpw_module|_flat_param\b|_flat_param_")
#: Calls that take a part out of a name, and leave a name without it alone.
REMOVING = frozenset(
    {"lstrip", "partition", "removeprefix", "removesuffix", "replace", "rpartition", "rsplit", "split", "sub", "subn"}
)
TALKING = re.compile(r"print|debug|info|warn|warning|error|exception|critical|log|\w*Error|\w*Warning|\w*Exception")
#: Keywords whose texts are shown to people: argparse's, click's, typer's, a dataclass field's metadata.
SHOWN = frozenset({"description", "doc", "epilog", "help", "metavar", "short_help", "usage"})


class NameSurgery(Rule):
    """FSDP1 prefixes in parameter names (_fsdp_wrapped_module).

    FSDP2 does not change parameter names. Removing `_fsdp_wrapped_module.` finds nothing and does no harm (old
    checkpoints may still contain it). Code that tests for the prefix or part of it, or adds it to a name, now behaves
    differently. `_checkpoint_wrapped_module.` is kept in names under FSDP2. A comparison with a whole name, or with its
    start, never matched under FSDP1 because of the prefix, and can match now: other parameters get into a group. The
    same is true for a lookup among names made before sharding, for a name split at its dots, and for a search for text
    that contains the start of a unit (`blocks.0.up`). Saved names differ in the file, including those of `model.module`
    while full parameters are gathered.
    """

    id = "FSDP207"
    name = "name-surgery"
    spelled = ("_fsdp_wrapped_module", "_fpw_module")
    what_to_test = EFFECT
    visits = (cst.SimpleString, cst.FormattedStringText, cst.Comparison, cst.Call)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def names(model):
    model = FSDP(model)
    clean = [name.replace("_fsdp_wrapped_module.", "") for name, _ in model.named_parameters()]
    inner = [name for name in clean if name.startswith("_fsdp_wrapped_module.blocks")]
    return clean, inner
"""
    after = """
from torch.distributed.fsdp import fully_shard

def names(model):
    fully_shard(model)
    clean = [name.replace("_fsdp_wrapped_module.", "") for name, _ in model.named_parameters()]
    # TODO(fsdp-migrate FSDP207): FSDP2 parameter names have no "_fsdp_wrapped_module", which this line relies on
    inner = [name for name in clean if name.startswith("_fsdp_wrapped_module.blocks")]
    return clean, inner
"""

    def visit(
        self, node: cst.SimpleString | cst.FormattedStringText | cst.Comparison | cst.Call, file: File
    ) -> Iterable[Diagnosis]:
        """Tell harmless uses of a prefix from those that count on it."""
        is_plain = _is_plain(file.module, file)
        if isinstance(node, cst.Comparison | cst.Call):
            yield from about_table(node, file)
            if isinstance(node, cst.Call):
                yield from about_saved(node, file)
                yield from about_parts(node, file) if is_plain else ()
            return
        if isinstance(node, cst.SimpleString) and is_plain:
            yield from about_comparison(node, file)
            yield from about_text(node, file)
        found = PREFIX.search(node.value)
        level = _level(node, file) if found is not None else None
        if found is None or level is None:
            return
        prefix = found.group().rstrip("_")
        if level is Level.MANUAL and "fsdp1" in file.project.tree_flags:
            yield Diagnosis(
                node,
                Level.MANUAL,
                f'FSDP2 parameter names have no "{prefix}", which this line relies on',
                "remove the prefix here, or keep the line if it only reads old checkpoints",
            )
        elif level is Level.REVIEW and "fsdp1" in file.project.tree_flags:
            message = f'assumes no test depends on "{prefix}", which FSDP2 parameter names do not have'
            yield Diagnosis(node, level, message, "remove the prefix here, or keep the line if it only removes it")
        else:
            yield Diagnosis(
                node,
                Level.INFO,
                f'FSDP2 parameter names have no "{prefix}"',
                "remove this line once no old checkpoint is read",
            )


@once
def _is_plain(_: cst.Module, file: File) -> bool:
    return PREFIX.search(file.text) is None


def _level(node: cst.CSTNode, file: File, depth: int = 0) -> Level | None:
    """None where the text is only shown to people, info where its absence does no harm, else manual."""
    parent = file.parent(node)
    if isinstance(parent, cst.Expr):
        return None
    if isinstance(parent, cst.FormattedString):
        return None if _is_talk(parent, file) else Level.MANUAL
    if isinstance(parent, cst.ConcatenatedString):
        return _level(parent, file, depth)
    if isinstance(parent, cst.Arg):
        return _argument(parent, file)
    if isinstance(parent, cst.ComparisonTarget | cst.Comparison):
        return Level.INFO if _guards_removal(node, file) else Level.MANUAL
    if isinstance(parent, cst.Element | cst.DictElement):
        return _of_display(parent, file, depth)
    if isinstance(parent, cst.Param):
        return Level.REVIEW
    if isinstance(parent, cst.Assign | cst.AnnAssign) and depth < 3:
        targets = [entry.target for entry in parent.targets] if isinstance(parent, cst.Assign) else [parent.target]
        if all(isinstance(target, cst.Name) for target in targets):
            names = [target.value for target in targets if isinstance(target, cst.Name)]
            uses = [_level(use, file, depth + 1) for name in names for use in file.uses(name)]
            return next((one for one in (Level.MANUAL, Level.REVIEW) if one in uses), Level.INFO)
    return Level.MANUAL


def _of_display(element: cst.CSTNode, file: File, depth: int) -> Level:
    """Info where what the display around ``element`` names is only removed, review where it may be tested for."""
    display = file.parent(element)
    loops = [one for one in file.ancestors(element) if isinstance(one, cst.For | cst.CompFor)][:1]
    if any(_removes(loop, file) for loop in loops):
        return Level.INFO
    statement = file.statement(element)
    target = statement.targets[0].target if isinstance(statement, cst.Assign) else None
    if isinstance(target, cst.Name) and display is not None and depth < 3:
        wholes = [file.statement(use) for use in file.uses(target.value)]
        return Level.INFO if all(_removes(whole, file) for whole in wholes) else Level.REVIEW
    return Level.REVIEW


def _argument(argument: cst.Arg, file: File) -> Level | None:
    call = file.parent(argument)
    if not isinstance(call, cst.Call):
        return Level.MANUAL
    if _is_talk(argument, file) or (argument.keyword is not None and argument.keyword.value in SHOWN):
        return None
    function = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    name = function.value if isinstance(function, cst.Name) else ""
    if name in REMOVING or name == "len":
        return Level.INFO
    if name == "getattr" and len(call.args) == 3:
        # Without the wrapper the object itself is what the wrapper held.
        return Level.INFO if file.code(call.args[2].value) == file.code(call.args[0].value) else Level.REVIEW
    if name == "hasattr":
        return Level.REVIEW
    if file.resolved(call.func) == "re.compile" and _is_only_removed(argument, call, file):
        return Level.INFO
    return Level.INFO if _guards_removal(call, file) else Level.MANUAL


def _is_only_removed(argument: cst.Arg, call: cst.Call, file: File) -> bool:
    """Whether all uses of the pattern that ``call`` compiles make of a name what they make of it without a prefix."""
    parent = file.parent(call)
    uses: list[cst.BaseExpression] = [call]
    if isinstance(parent, cst.Assign | cst.AnnAssign):
        targets = [entry.target for entry in parent.targets] if isinstance(parent, cst.Assign) else [parent.target]
        names = [target for target in targets if isinstance(target, cst.Name)]
        uses = [use for name in names for use in file.uses(name.value) if use is not name]
        if len(names) < len(targets) or not uses:
            return False
    text = argument.value.evaluated_value if isinstance(argument.value, _TEXTS) else None
    return isinstance(text, str) and all(_strips(use, text, file) for use in uses)


def _strips(pattern: cst.BaseExpression, text: str, file: File) -> bool:
    """Whether ``pattern``, made of ``text``, is substituted, and a name with a prefix becomes what one without does."""
    method = file.parent(pattern)
    call = file.parent(method) if isinstance(method, cst.Attribute) and method.value is pattern else None
    if not isinstance(call, cst.Call) or not isinstance(method, cst.Attribute) or len(call.args) < 2:
        return False
    new = call.args[0].value.evaluated_value if isinstance(call.args[0].value, _TEXTS) else None
    if method.attr.value not in ("sub", "subn") or not isinstance(new, str):
        return False
    prefix = PREFIX.search(text)
    words = [*re.findall(r"[A-Za-z_]\w*", PREFIX.sub("", text)), "blocks.0"]
    try:
        return prefix is not None and all(_is_same(re.compile(text), new, prefix.group(), word) for word in words)
    except (re.error, IndexError):
        return False


def _is_same(pattern: re.Pattern[str], new: str, prefix: str, word: str) -> bool:
    for name in (f"{prefix}.{word}", f"{word}.{prefix}.weight"):
        result = pattern.sub(new, name)
        if result not in (name, pattern.sub(new, name.replace(f"{prefix}.", ""))):
            return False
    return True


_TEXTS = (cst.SimpleString, cst.ConcatenatedString)


def _is_talk(node: cst.CSTNode, file: File) -> bool:
    call = given_to(node.value if isinstance(node, cst.Arg) else node, file)
    if call is None:
        return False
    function = call.func.attr if isinstance(call.func, cst.Attribute) else call.func
    return isinstance(function, cst.Name) and TALKING.fullmatch(function.value) is not None


def _guards_removal(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is the test in front of nothing but the removal of what it looks for."""
    for ancestor, child in branches(node, file):
        if isinstance(ancestor, cst.If) and child is ancestor.test:
            return ancestor.orelse is None and len(ancestor.body.body) == 1 and _removes(ancestor.body, file)
        if isinstance(ancestor, cst.While) and child is ancestor.test:
            return _removes(ancestor.body, file)
        if isinstance(ancestor, cst.IfExp) and child is ancestor.test:
            return _removes(ancestor.body, file)
        if isinstance(ancestor, cst.BaseStatement):
            return False
    return False


def _removes(node: cst.CSTNode, file: File) -> bool:
    attributes = file.inside(node, cst.Attribute)
    return bool(file.inside(node, cst.Slice)) or any(entry.attr.value in REMOVING for entry in attributes)
