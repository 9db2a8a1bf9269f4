"""How a program hands its model to accelerate, and an Accelerator that takes a plugin which another file makes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from fsdp_rules.configuration.block import Plain
from fsdp_rules.file.expressions import is_none, last_name
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.hosts._given_words import unpacked_words, words_of
from fsdp_rules.hosts._plugin import changes_form
from fsdp_rules.hosts._values import literal
from fsdp_rules.project.given_words import PLUGIN
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

_TOGETHER = "Pass model and optimizer to one prepare() call."
_AUTOCAST = "Use torch.autocast around forward and loss for the old numbers, and cast outputs to fp32"
#: What accelerate calls the plugin wherever it gives it to others.
_GIVEN = "fsdp_plugin"
_NAMED = (
    "Name the layers: transformer_based_wrap, with transformer_cls_names_to_wrap, in the plugin or the launcher's file"
)


def set_on_given(node: cst.CSTNode, file: File) -> Iterator[Diagnosis]:
    """What ``node`` sets on the plugin of an Accelerator or a Trainer, in a form that FSDP2 does not take."""
    for owner, name, value in _set(node):
        if changes_form(name) and not is_none(value) and _GIVEN in (last_name(owner), last_name(file.value(owner))):
            if name == "auto_wrap_policy":
                told, advice = "FSDP2 silently drops a callable, so only the root is sharded", _NAMED
            else:
                told = f"FSDP2 expects {name} in a different form"
                advice = "Set it in the plugin's call or in the launcher's file, in FSDP2's form"
            yield Diagnosis(node, Level.MANUAL, told, advice)


def _set(node: cst.CSTNode) -> Iterator[tuple[cst.BaseExpression, str, cst.BaseExpression]]:
    """The object, the name and the value of each attribute that ``node`` sets."""
    if isinstance(node, cst.Assign):
        for target in node.targets:
            if isinstance(target.target, cst.Attribute):
                yield target.target.value, target.target.attr.value, node.value
    elif isinstance(node, cst.Call) and last_name(node.func) == "setattr" and len(node.args) == 3:
        owner, name, value = (argument.value for argument in node.args)
        if isinstance(name, cst.SimpleString):
            yield owner, str(name.evaluated_value), value


def taken_elsewhere(accelerator: cst.Call, file: File) -> Iterator[Diagnosis]:
    """What does not run under FSDP2, or not with the same numbers, beside the plugin of another file."""
    given = {key_of(one): one.value for one in accelerator.args if key_of(one)}
    unpacked = [one.value for one in accelerator.args if one.star == "**"]
    words = [*words_of(given["fsdp_plugin"], file)] if "fsdp_plugin" in given else []
    words += [word for one in unpacked for word in unpacked_words(one, "fsdp_plugin", file)]
    made = next((word for word in words if word.text == PLUGIN and word.path != file.path), None)
    if made is None:
        return
    for call, what in prepared_alone(accelerator, file):
        told = f"{what} raises ValueError under FSDP2, which the plugin of {made.path} runs"
        yield Diagnosis(call, Level.MANUAL, told, _TOGETHER)
    precision = literal(given["mixed_precision"], file) if "mixed_precision" in given else None
    if precision is not None and precision.plain not in (None, "no"):
        told = f"mixed_precision {precision.plain} changes the losses: accelerate's FSDP2 runs without autocast"
        yield Diagnosis(given["mixed_precision"], Level.MANUAL, told, _AUTOCAST)
    elif precision is not None and not precision.known:
        told = "assumes full precision: with bf16 or fp16 accelerate's FSDP2 runs without autocast"
        yield Diagnosis(given["mixed_precision"], Level.REVIEW, told, _AUTOCAST)


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
