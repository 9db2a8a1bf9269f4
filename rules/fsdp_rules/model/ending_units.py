"""Which parts are units by the policies of a tree, and whether a model may give the very tensor of one of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.program_wraps import parsed, sources_of
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.walking import walk

#: Policies that name the classes of the units, by the argument that does; of any other policy nothing is known.
BY_CLASS = {"ModuleWrapPolicy": "module_classes", "transformer_auto_wrap_policy": "transformer_layer_cls"}
OTHER_POLICIES = ("CustomPolicy", "size_based_auto_wrap_policy", "always_wrap_policy", "lambda_auto_wrap_policy")


def unit_classes(trees: Iterable[ast.Module]) -> frozenset[str] | None:
    """The classes that the policies of some files name as units; None where one of the policies names none."""
    found: set[str] = set()
    for node in (node for tree in trees for node in walk(tree)):
        name = (text_of(node) or "").rpartition(".")[2] if isinstance(node, ast.Name | ast.Attribute) else ""
        is_lambda = isinstance(node, ast.keyword) and isinstance(node.value, ast.Lambda)
        # A policy of one's own is a function that is asked whether to look inside.
        is_own = isinstance(node, ast.arg) and node.arg == "recurse"
        if name in OTHER_POLICIES or is_lambda or is_own:
            return None
        for value in _given(node):
            listed = value.elts if isinstance(value, ast.Set | ast.List | ast.Tuple) else []
            texts = [text for one in listed if (text := text_of(one)) is not None]
            if not texts or len(texts) < len(listed):
                return None
            found |= {text.rpartition(".")[2] for text in texts}
    return frozenset(found)


def _given(node: ast.AST) -> list[ast.expr]:
    """The classes that the call ``node`` of a policy, or of a partial of one, is given."""
    if not isinstance(node, ast.Call):
        return []
    called = {(text_of(one) or "").rpartition(".")[2] for one in (node.func, *node.args)} & BY_CLASS.keys()
    given = [word.value for policy in called for word in node.keywords if word.arg == BY_CLASS[policy]]
    return given + (node.args[:1] if "ModuleWrapPolicy" in called else [])


def unit_by_class(node: cst.BaseExpression, file: File) -> Certainty:
    """How sure it is that ``node``, which is given an attribute, is a unit that a policy wraps for its class."""
    if not file.layout.has(node):
        return Certainty.NO
    classes = file.project.values.changed.get(file.path, {}).get(file.span(node))
    if not classes:
        return Certainty.NO
    units = unit_classes(map(parsed, sources_of(file)))
    if units is None:
        return Certainty.MAYBE
    return Certainty.NO if units.isdisjoint(classes) else Certainty.YES
