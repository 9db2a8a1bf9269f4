"""Rule for strings by which a framework is told to run FSDP1."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.hosts._given_words import unpacked_words, words_of
from fsdp_rules.project.given_words import LIGHTNING
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

_TRAINERS = ("Trainer", "Fabric")
_MODEL_PARALLEL = (
    "Use ModelParallelStrategy(data_parallel_size=WORLD_SIZE, tensor_parallel_size=1) and call fully_shard in "
    "configure_model."
)


class HostWords(Rule):
    """`strategy="fsdp"` of Lightning, `parallel_strategy="fsdp"` of Ray Train.

    Neither has such a name for FSDP2: the program itself shards the model with `fully_shard`. If the value comes from a
    variable, from `**`, from a setting or from an option, it is followed to its definition.
    """

    id = "FSDP554"
    name = "host-words"
    alone = (r"[\"']fsdp(_native|_cpu_offload)?\w*[\"']",)
    # What takes a word that another file keeps.
    markers = (("Trainer", "lightning"), ("Fabric", "lightning"), ("parallel_strategy", "ray"))
    open_world = True
    what_to_test = HOSTED
    visits = (cst.Call,)
    shim = True
    before = """
import lightning as L

trainer = L.Trainer(devices=8, strategy="fsdp")
"""
    after = """
import lightning as L

# TODO(fsdp-migrate FSDP554): strategy="fsdp" is FSDP1, and Lightning has no such name for FSDP2
trainer = L.Trainer(devices=8, strategy="fsdp")
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Calls of Lightning's and Ray's functions with such a word."""
        full = file.resolved(node.func) or ""
        keyword, title, advice = _asked(full)
        if not keyword:
            return
        for argument in node.args:
            if argument.star == "**":
                words = [*unpacked_words(argument.value, keyword, file)]
            elif argument.keyword is not None and argument.keyword.value == keyword:
                words = [*words_of(argument.value, file)]
            else:
                continue
            found = next((word for word in words if word.text in LIGHTNING), None)
            if found is not None:
                told = f'{keyword}="{found.text}" is FSDP1, and {title} has no such name for FSDP2'
                if found.path != file.path:
                    told = f'{keyword} may be "{found.text}" of {found.path}, which is FSDP1'
                elif not isinstance(file.value(argument.value), cst.SimpleString):
                    told = f'{keyword} may be "{found.text}", which is FSDP1'
                yield Diagnosis(node, Level.MANUAL, told, advice)


def _asked(full: str) -> tuple[str, str, str]:
    """The argument by which the function ``full`` is asked for FSDP1, the title of its framework, and what to do."""
    if "lightning" in full and full.rpartition(".")[2] in _TRAINERS:
        return "strategy", "Lightning", _MODEL_PARALLEL
    if full.startswith("ray."):
        return (
            "parallel_strategy",
            "Ray Train",
            "Call fully_shard on the model yourself and drop prepare_model's wrapping.",
        )
    return "", "", ""
