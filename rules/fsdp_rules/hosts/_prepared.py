"""How a program hands its model to accelerate."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.configuration.block import Plain
from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.hosts._values import literal

#: What people call what they train.
_MODEL = re.compile(r"model|net|module|backbone|encoder|decoder|transformer|llm|actor|critic")


def prepared_alone(plugin: cst.Call, file: File) -> Iterator[tuple[cst.Call, str]]:
    """The calls that prepare a model without its optimizer, and what to call them in a message.

    Those of the function that makes the plugin count, or of the whole file where none does.
    """
    place = file.function(plugin)
    for call in file.nodes(cst.Call):
        if not isinstance(call.func, cst.Attribute) or any(argument.star for argument in call.args):
            continue
        if place is not None and place not in file.ancestors(call):
            continue
        name = call.func.attr.value
        names = [last_name(argument.value).lower() for argument in call.args]
        if name == "prepare_model" and "accelerat" in last_name(call.func.value).lower():
            yield call, "prepare_model()"
        elif name == "prepare" and any(_MODEL.search(one) for one in names) and not any("opt" in one for one in names):
            yield call, "prepare() without the optimizer"


def accelerator_of(plugin: cst.Call, file: File) -> cst.Call | None:
    """The one Accelerator of this file that takes ``plugin`` and has no meshes yet, None where there is none."""
    found = []
    for call in file.nodes(cst.Call):
        given = {argument.keyword.value: argument.value for argument in call.args if argument.keyword}
        if "fsdp_plugin" in given and file.value(given["fsdp_plugin"]) is plugin:
            found.append(call if "parallelism_config" not in given and not any(one.star for one in call.args) else None)
    return found[0] if len(found) == 1 else None


def mixed_precision(file: File) -> Plain:
    """The ``mixed_precision`` of the Accelerator that gets a plugin, where the file says one."""
    found = []
    for call in file.nodes(cst.Call):
        given = {argument.keyword.value: argument.value for argument in call.args if argument.keyword}
        if "fsdp_plugin" in given:
            found.append(literal(given["mixed_precision"], file).plain if "mixed_precision" in given else None)
    return found[0] if len(set(found)) == 1 else None
