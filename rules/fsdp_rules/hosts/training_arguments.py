"""Rule for ``fsdp`` and ``fsdp_config`` of transformers' arguments in Python."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

ARGUMENTS = ("fsdp", "fsdp_config", "fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
_GONE = ("fsdp_transformer_layer_cls_to_wrap", "fsdp_min_num_params")
#: Packages whose arguments are transformers' own.
_PACKAGES = ("transformers", "trl", "sentence_transformers", "setfit", "optimum", "unsloth")


class TrainingArgumentsFsdp(Rule):
    """`fsdp` and `fsdp_config` of `TrainingArguments`, and of classes that extend it.

    Without a version in `fsdp_config` they mean FSDP1 before transformers 5.10 and FSDP2 from then on. FSDP2 refuses
    `hybrid_shard` and `no_shard`. The two arguments that begin with `fsdp_` and are not in the config are gone in 5.0.
    """

    id = "FSDP552"
    name = "training-arguments"
    alone = (r"\bfsdp(_config|_min_num_params|_transformer_layer_cls_to_wrap)?\s*=",)
    what_to_test = HOSTED
    visits = (cst.Call,)
    shim = True
    before = """
from transformers import TrainingArguments

arguments = TrainingArguments("out", fsdp="full_shard auto_wrap")
"""
    after = """
from transformers import TrainingArguments

# TODO(fsdp-migrate FSDP552): without a version this is FSDP1 before transformers 5.10 and FSDP2 from then on
arguments = TrainingArguments("out", fsdp="full_shard auto_wrap")
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Calls with one of the arguments, of a class that is transformers' or named like it."""
        if not isinstance(node, cst.Call):
            return
        given = {argument.keyword.value: argument.value for argument in node.args if argument.keyword}
        words = {name: value for name, value in given.items() if name in ARGUMENTS and not _is_off(value)}
        if not words or not _is_arguments(node, file):
            return
        gone = [name for name in _GONE if name in words]
        if gone:
            told, advice = f"{gone[0]} does not exist from transformers 5.0 on", "Put it into fsdp_config."
            yield Diagnosis(node, Level.MANUAL, told, advice)
        text = file.code(words["fsdp"]) if "fsdp" in words else ""
        config = words.get("fsdp_config")
        resolved = file.code(file.value(config)) if config is not None else ""
        for word in ("hybrid_shard", "no_shard"):
            if word in text.lower():
                told = f"transformers' FSDP2 refuses {word} with ValueError"
                yield Diagnosis(node, Level.MANUAL, told, 'Set "version": 1 in fsdp_config, or use full_shard.')
                return
        if "version" in resolved:
            return
        yield Diagnosis(
            node,
            Level.MANUAL,
            "without a version this is FSDP1 before transformers 5.10 and FSDP2 from then on",
            'Put "version": 2 into fsdp_config, and what fsdp says as "reshard_after_forward" and "cpu_offload".',
        )


def _is_off(value: cst.BaseExpression) -> bool:
    if isinstance(value, cst.SimpleString):
        return not str(value.evaluated_value)
    return is_none(value) or (isinstance(value, cst.Name) and value.value == "False")


def _is_arguments(node: cst.Call, file: File) -> bool:
    full = file.resolved(node.func) or file.code(node.func)
    last = full.rpartition(".")[2]
    return full.startswith(_PACKAGES) or last.endswith(("TrainingArguments", "TrainingArgs"))
