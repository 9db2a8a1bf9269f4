"""Rule for ``children``, ``named_children`` and the tables (``_modules``) of a wrapped model."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import call_of
from fsdp_rules.file.file import File
from fsdp_rules.loop._module_counts import METHODS as WHOLE
from fsdp_rules.loop._module_counts import about_modules
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.model.sharded import sharded, wrapper_of
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

METHODS = ("children", "named_children")
#: A module's own tables, and what FSDP1's wrapper has in its own.
TABLES = {"_modules": "the model alone", "_parameters": "empty", "_buffers": "empty"}


class Children(Rule):
    """children() and named_children() of a sharded model.

    FSDP1's wrapper has one child, the model inside, and its own `_parameters` and `_buffers` are empty. A model sharded
    by `fully_shard` has its own children, so an index, a loop or a name means something else. A recursive function
    reaches the same modules, and `model.module.children()` becomes `model.children()`. `modules()` and
    `named_modules()` no longer contain a wrapper for each unit, so their number and positions change. `fsdp_compat`
    behaves like FSDP2 here.
    """

    id = "FSDP231"
    name = "children"
    what_to_test = EFFECT
    visits = (cst.Attribute,)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def run(net):
    model = FSDP(net)
    return [child for child in model.children()]
"""
    after = """
from torch.distributed.fsdp import fully_shard

def run(net):
    model = fully_shard(net)
    # TODO(fsdp-migrate FSDP231): children() was the model alone under FSDP1, and is now the content of the model
    return [child for child in model.children()]
"""

    def visit(self, node: cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """What names the children of a model that is sharded where it is."""
        if node.attr.value in WHOLE:
            yield from about_modules(node, file)
        if node.attr.value not in (*METHODS, *TABLES):
            return
        is_call = call_of(node, file) is not None
        if is_call is (node.attr.value in TABLES) or _is_recursive(node, file):
            return
        if wrapper_of(node.value, file) is not None:
            return
        held = sharded(node.value, file).certainty
        if held is Certainty.NO or is_not_sharded_yet(node, node.value, file):
            return
        said = f"{node.attr.value}{'()' if is_call else ''}"
        text = file.code(node.value)
        before = TABLES.get(node.attr.value, "the model alone")
        cure = f"use [{text}] for FSDP1's only child; remove the comment if you mean the model's own children"
        if before == "empty":
            cure = (
                "if you mean the model's own children, remove the comment; if the code had no effect, remove the code"
            )
        if held is Certainty.YES:
            message = f"{said} was {before} under FSDP1, and is now the content of the model"
            yield Diagnosis(node, Level.MANUAL, message, cure)
        elif before != "empty":
            # What is taken out of a wrapper has the model's own children under both.
            message = f"assumes {text} was not an FSDP1 wrapper, whose {said} was only the model"
            yield Diagnosis(node, Level.REVIEW, message, f"use [{text}] if it was a wrapper")


def _is_recursive(node: cst.Attribute, file: File) -> bool:
    """Whether the function around ``node`` calls itself, so that it only gets to the modules in fewer steps."""
    function = file.function(node)
    return function is not None and any(
        isinstance(call.func, cst.Name | cst.Attribute)
        and (call.func.attr if isinstance(call.func, cst.Attribute) else call.func).value == function.name.value
        for call in file.inside(function.body, cst.Call)
    )
