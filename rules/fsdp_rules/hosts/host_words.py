"""Rule for strings by which a framework is told to run FSDP1."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

_LIGHTNING = ("fsdp", "fsdp_cpu_offload", "fsdp_native", "fsdp_native_full_shard_offload")
_TRAINERS = ("Trainer", "Fabric")


class HostWords(Rule):
    """`strategy="fsdp"` of Lightning, `parallel_strategy="fsdp"` of Ray Train.

    Neither has a word for FSDP2: the model is sharded by the program itself, with `fully_shard`.
    """

    id = "FSDP554"
    name = "host-words"
    alone = (r"[\"']fsdp(_native|_cpu_offload)?\w*[\"']",)
    what_to_test = HOSTED
    visits = (cst.Call,)
    shim = True
    before = """
import lightning as L

trainer = L.Trainer(devices=8, strategy="fsdp")
"""
    after = """
import lightning as L

# TODO(fsdp-migrate FSDP554): strategy="fsdp" is FSDP1, and Lightning has no word for FSDP2
trainer = L.Trainer(devices=8, strategy="fsdp")
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Calls of Lightning's and Ray's functions with such a word."""
        if not isinstance(node, cst.Call):
            return
        full = file.resolved(node.func) or ""
        last = full.rpartition(".")[2]
        for argument in node.args:
            if argument.keyword is None:
                continue
            value = file.value(argument.value)
            word = value.evaluated_value if isinstance(value, cst.SimpleString) else None
            name = argument.keyword.value
            if name == "strategy" and word in _LIGHTNING and last in _TRAINERS and "lightning" in full:
                yield Diagnosis(
                    node,
                    Level.MANUAL,
                    f'strategy="{word}" is FSDP1, and Lightning has no word for FSDP2',
                    "Use ModelParallelStrategy(data_parallel_size=WORLD_SIZE, tensor_parallel_size=1) and call "
                    "fully_shard in configure_model.",
                )
            elif name == "parallel_strategy" and word == "fsdp" and full.startswith("ray."):
                yield Diagnosis(
                    node,
                    Level.MANUAL,
                    'parallel_strategy="fsdp" is FSDP1, and Ray Train has no word for FSDP2',
                    "Call fully_shard on the model yourself and drop prepare_model's wrapping.",
                )
