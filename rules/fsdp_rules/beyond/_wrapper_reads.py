"""What stands in the place of attributes of FSDP1's wrapper where they are read: its process group, and its device."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.private_names import private_names
from fsdp_rules.fsdp1.strategy_names import HYBRID
from fsdp_rules.model.origin import GROUPS, may_be_given
from fsdp_rules.model.wrap_given import IGNORED, WrapGiven
from fsdp_rules.project.value_facts import NONE, UNKNOWN
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level

REPLACED = private_names("replaced")


def read_elsewhere(node: cst.BaseExpression, model: cst.BaseExpression, name: str, file: File) -> Diagnosis | None:
    """The edit for ``node``, which reads the attribute ``name`` of ``model``; None where nothing replaces it."""
    if name not in REPLACED:
        return None
    if name == "compute_device":
        return None if may_be_given(("cpu_offload", *IGNORED), model, file) else _of_parameters(node, model)
    if not _has_group(model, file):
        return _of_default_group(node, name, file)
    return _of_own_group(node, model, name, file) if file.settings.may_help else None


def _has_group(model: cst.BaseExpression, file: File) -> bool:
    """Whether ``model`` may have another group than the default one: in a loop over units that of any wrap."""
    every = WrapGiven(tuple(file.project.values.wraps), file)
    is_given = any(every.texts(name) != {NONE} for name in GROUPS)
    return is_given or may_be_given(GROUPS, model, file) or not every.strategies.isdisjoint(HYBRID | {UNKNOWN})


def _of_parameters(node: cst.BaseExpression, model: cst.BaseExpression) -> Diagnosis:
    edit = Replace(node, lambda code: REPLACED["compute_device"].format(code(model)))
    return Diagnosis(node, Level.SAFE, "FSDP2's parameters are on the device that computes", edits=(edit,))


def _of_default_group(node: cst.BaseExpression, name: str, file: File) -> Diagnosis:
    owner, _, last = REPLACED[name].rpartition(".")
    text = f"{file.ref(owner)}.{last}" if name == "process_group" else f"{file.ref(REPLACED[name])}()"
    message = "the wrap uses the default process group, which torch.distributed returns too"
    return Diagnosis(node, Level.SAFE, message, edits=(Replace(node, lambda code: text),))


def _of_own_group(node: cst.BaseExpression, model: cst.BaseExpression, name: str, file: File) -> Diagnosis:
    helper = file.ref("fsdp_compat.process_group")
    function = "" if name == "process_group" else file.ref(REPLACED[name])

    def build(code: Code) -> str:
        group = f"{helper}({code(model)})"
        return f"{function}({group})" if function else group

    message = "fsdp_compat.process_group returns the group of this model's shards, which may not be the default one"
    return Diagnosis(node, Level.SAFE, message, edits=(Replace(node, build),))
