"""Rule for FSDP1's private functions and attributes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.beyond._wrapper_reads import read_elsewhere
from fsdp_rules.file.ancestors import tests_around
from fsdp_rules.file.expressions import Asked, asked, call_of, literal_bool, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.reads import is_target
from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.fsdp1.private_names import advice, private_names
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.guards import SWITCH, Guard, guard_of, is_under_hasattr
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit, Replace, remove
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Role, Rule
from fsdp_rules.verdict.what_to_test import UNCHECKED

FUNCTIONS = private_names("functions")
ATTRIBUTES = private_names("attributes")
#: Those of them that other libraries have too; the rest is FSDP1's wherever it stands.
COMMON = frozenset({"_handle", "_handles", "_streams", "flat_param"})

NOT_THERE = "import it from the module that defines it, or use its replacement"
PUBLIC = private_names("public")
TAKERS = private_names("takers")
#: Those of them that fsdp_compat's modules have too.
SHIMMED = frozenset(
    {
        *("backward_prefetch", "compute_device", "cpu_offload", "forward_prefetch", "limit_all_gathers"),
        *("_inter_node_pg", "mixed_precision", "process_group", "rank", "sharding_strategy", "world_size"),
    }
)


class PrivateApi(Rule):
    """Private API of FSDP1 (_handle, FlatParameter).

    Private modules, handles, flat parameters and attributes of the wrapper do not exist on an FSDP2 model. Each use is
    listed, with the equivalent public call if there is one. Also listed are lookups of the wrapper's public attributes
    (`getattr(model, "sharding_strategy", None)`), which now find nothing, and functions of other libraries that accept
    only FSDP1 models.

    Reads of a model's `process_group`, `rank` and `world_size` are replaced: by torch.distributed's default group if no
    wrap in the project gets another group, and by `fsdp_compat.process_group(model)` otherwise. `compute_device`
    becomes the device of the parameters, unless these may be offloaded or ignored. Freeing a unit's parameters by hand
    becomes `reshard()`, and an explicit lazy initialisation is removed.
    """

    id = "FSDP902"
    role = Role.PRIVATE
    name = "private-api"
    spelled = ("flat_param",)
    what_to_test = UNCHECKED
    visits = (cst.Attribute, cst.Name, cst.Call)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp._runtime_utils import _reshard

def free(model):
    for unit in FSDP.fsdp_modules(model):
        _reshard(unit, unit._handle, True)
"""
    after = """
from torch.distributed.fsdp import FSDPModule

def free(model):
    for unit in [module for module in model.modules() if isinstance(module, FSDPModule)]:
        unit.reshard()
"""

    def visit(self, node: cst.Attribute | cst.Name | cst.Call, file: File) -> Iterable[Diagnosis]:
        """List names of private modules, and attributes that only FSDP1's wrapper has."""
        if isinstance(node, cst.Call):
            yield from self._call(node, file)
        elif (file.fsdp1(node) or "").startswith("."):
            if not _is_inner(node, file) and not _is_rewritten(node, file):
                yield from self._function(node, file)
        elif type(node) is cst.Attribute:
            yield from self._attribute(node, file)

    def _call(self, call: cst.Call, file: File) -> Iterator[Diagnosis]:
        unit = _resharded(call, file)
        if unit is not None:
            edits: tuple[Edit, ...] = (Replace(call, lambda code: f"{code(unit)}.reshard()"),)
            yield Diagnosis(
                call, Level.SAFE, "reshard() is FSDP2's public call for this", edits=edits, claims=(call.func,)
            )
        elif (found := asked(call)) is not None and found.name in ATTRIBUTES and _is_fsdp1s(found.name, file):
            yield Diagnosis(call, Level.MANUAL, f"only FSDP1's wrapper has .{found.name}", ATTRIBUTES[found.name])
        elif found is not None and found.name in PUBLIC:
            yield from _asked(call, found, file)
        elif (taker := _taker(call, file)) and any(_may_be_sharded(one.value, file) for one in call.args):
            name = taker.rpartition(".")[2]
            yield Diagnosis(call, Level.MANUAL, f"{name} accepts only FSDP1 models", TAKERS[taker])
        elif _initialises(call, file):
            edits = (remove(file.statement(call)),)
            yield Diagnosis(
                call, Level.SAFE, "FSDP2 initialises itself at the first forward", edits=edits, claims=(call.func,)
            )

    def _function(self, node: cst.Attribute | cst.Name, file: File) -> Iterator[Diagnosis]:
        known = (file.fsdp1(node) or "").lstrip(".")
        parts = known.split(".")
        last = next((part for part in reversed(parts) if part in FUNCTIONS), "")
        if not last and not any(part.startswith("_") for part in parts):
            yield Diagnosis(node, Level.MANUAL, f"torch.distributed.fsdp has no {parts[-1]}", NOT_THERE)
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            f"{last or known.rpartition('.')[2]} is private to FSDP1",
            FUNCTIONS.get(last, advice("state")),
        )

    def _attribute(self, node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
        name = node.attr.value
        if name in ATTRIBUTES:
            if known_as("namesake", node.value, file) or _is_rewritten(node, file) or not _may_be_fsdp1(node, file):
                return
            if is_under_hasattr(node, file.code(node.value), name, file):
                return
            advice = ATTRIBUTES[name]
        elif name in PUBLIC:
            # What a model's own class calls so is the model's.
            if file.code(node.value) in ("self", "cls") or (file.settings.to == "shim" and name in SHIMMED):
                return
            found = sharded(node.value, file)
            known = found.certainty is Certainty.YES or _is_guarded(node, file) or _is_given_to_fsdp1(node.value, file)
            advice = PUBLIC[name]
            if not known and not _is_one_of_the_units(node.value, file):
                if found.certainty is Certainty.MAYBE and not found.is_excluded and _is_value(node, file):
                    message = f"if this model is sharded: only FSDP1's wrapper has .{name}"
                    yield Diagnosis(node, Level.REVIEW, message, advice)
                return
            if _is_value(node, file) and (read := read_elsewhere(node, node.value, name, file)) is not None:
                yield read
                return
        else:
            return
        yield Diagnosis(node, Level.MANUAL, f"only FSDP1's wrapper has .{name}", advice)


def _asked(call: cst.Call, question: Asked, file: File) -> Iterator[Diagnosis]:
    """The verdict about a question for a public attribute of FSDP1's wrapper, which now takes the other way."""
    held = sharded(question.subject, file)
    if held.certainty is Certainty.NO or held.is_excluded or (file.settings.to == "shim" and question.name in SHIMMED):
        return
    message = f"only FSDP1's wrapper has .{question.name}: this finds nothing under FSDP2"
    sure = held.certainty is Certainty.YES
    if sure and question.function == "getattr":
        read = read_elsewhere(call, question.subject, question.name, file)
        if read is not None:
            yield read
            return
    level, message = (Level.MANUAL, message) if sure else (Level.REVIEW, f"if this model is sharded: {message}")
    yield Diagnosis(call, level, message, PUBLIC[question.name])


def _taker(call: cst.Call, file: File) -> str:
    """The key of a library's function that takes FSDP1's models alone, "" for other calls."""
    first, _, rest = (file.resolved(call.func) or "").partition(".")
    key = f"{first}.{rest.rpartition('.')[2]}"
    return key if key in TAKERS else ""


def _may_be_sharded(node: cst.BaseExpression, file: File) -> bool:
    return sharded(node, file).certainty is not Certainty.NO


def _is_value(node: cst.Attribute, file: File) -> bool:
    """Whether an attribute is read, and neither called nor set."""
    return call_of(node, file) is None and not is_target(node, file.layout)


def _may_be_fsdp1(node: cst.Attribute, file: File) -> bool:
    """Whether an attribute with a spelling that others use too is FSDP1's: by what it hangs on, or by the imports."""
    inner = node.value
    while isinstance(inner, cst.Attribute | cst.Subscript):
        if isinstance(inner, cst.Attribute) and inner.attr.value in ATTRIBUTES:
            return False
        inner = inner.value
    if sharded(node.value, file).certainty is not Certainty.NO:
        return True
    return _is_fsdp1s(node.attr.value, file)


def _is_fsdp1s(name: str, file: File) -> bool:
    """Whether the file imports anything of FSDP1, from other modules too, or ``name`` is nothing else's in the tree."""
    imported = any(canonical(file.project.resolve(full)) is not None for full in file.aliases.values())
    return imported or (name not in COMMON and "fsdp1" in file.project.flags)


def _is_guarded(node: cst.Attribute, file: File) -> bool:
    """Whether a test around ``node``, or a skip above it, says that what it hangs on is FSDP1's wrapper."""
    subject = file.code(node.value)
    if guard_of(node, subject, file) is Guard.FSDP1:
        return True
    return any(truth and _asks_for_fsdp(test, subject, file) for test, truth in tests_around(node, file))


def _is_given_to_fsdp1(model: cst.BaseExpression, file: File) -> bool:
    """Whether the function around ``model`` also hands it to a static method or private function of FSDP1."""
    subject, scope = file.code(model), file.scope(model)
    return any(
        file.scope(call) == scope
        and (file.fsdp1(call.func) or "").startswith((f"{FSDP}.", "."))
        and any(file.code(argument.value) == subject for argument in call.args)
        for call in file.nodes(cst.Call)
    )


def _is_one_of_the_units(node: cst.BaseExpression, file: File) -> bool:
    """Whether a loop gives ``node`` out of ``FSDP.fsdp_modules(...)``, or of a function that is called like it."""
    return isinstance(node, cst.Name) and any(
        isinstance(loop, cst.For)
        and any(entry.value == node.value for entry in names_in(loop.target))
        and any("fsdp_modules" in (dotted(call.func) or "") for call in file.inside(loop.iter, cst.Call))
        for loop in file.ancestors(node)
    )


def _asks_for_fsdp(test: cst.BaseExpression, subject: str, file: File) -> bool:
    """``is_fsdp(subject)``, by what people call such a function."""
    return (
        isinstance(test, cst.Call)
        and SWITCH.search((dotted(test.func) or "").rpartition(".")[2]) is not None
        and len(test.args) == 1
        and file.code(test.args[0].value) == subject
    )


def _is_inner(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is a part of a longer chain, an imported name, or the name of an attribute or a keyword."""
    parent = file.parent(node)
    if isinstance(parent, cst.ImportAlias | cst.AsName | cst.ImportFrom | cst.Import):
        return True
    if isinstance(parent, cst.Attribute) and isinstance(node, cst.Name):
        return parent.attr is node or file.fsdp1(parent) is not None
    if isinstance(parent, cst.Arg | cst.Param):
        return getattr(parent, "keyword", None) is node or getattr(parent, "name", None) is node
    return isinstance(parent, cst.Attribute) and (file.fsdp1(parent) or "").startswith(".")


def _resharded(call: cst.Call, file: File) -> cst.BaseExpression | None:
    """``m`` in ``_reshard(m, m._handle, True)``."""
    if not (file.fsdp1(call.func) or "").endswith("._reshard") or len(call.args) != 3:
        return None
    unit, handle, free = (argument.value for argument in call.args)
    if dotted(unit) is None or file.code(handle) != f"{file.code(unit)}._handle" or literal_bool(free) is not True:
        return None
    return unit


def _initialises(call: cst.Call, file: File) -> bool:
    """Whether ``call`` is a statement of its own that brings FSDP1's lazy initialisation forward."""
    return (file.fsdp1(call.func) or "").endswith("._lazy_init") and isinstance(file.parent(call), cst.Expr)


def _is_rewritten(node: cst.CSTNode, file: File) -> bool:
    for ancestor in file.ancestors(node):
        if isinstance(ancestor, cst.Call):
            return _resharded(ancestor, file) is not None or _initialises(ancestor, file)
        if isinstance(ancestor, cst.BaseStatement):
            return False
    return False
