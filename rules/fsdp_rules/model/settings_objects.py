"""Objects that hold settings, by what people call them: a ``model`` of theirs is no module."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.optimizers import SETTINGS


def is_of_settings(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is an object of settings or a part of one, and the tree keeps no wrapped model in such ones."""
    names = [node.value] if isinstance(node, cst.Name) else []
    while isinstance(node, cst.Attribute | cst.Subscript):
        node = node.value
        names.append(last_name(node))
    return any(map(SETTINGS.search, names)) and not _keeps_models(file)


def _keeps_models(file: File) -> bool:
    named = (pair for every in file.project.values.named.values() for pair in every.items())
    texts = (text for (_, text), fact in named if Certainty.YES in (fact.model, fact.given))
    return any(SETTINGS.search(part) for text in texts for part in text.split(".")[:-1])
