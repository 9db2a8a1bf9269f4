"""An Accelerator that takes a plugin which another file makes: what only the Accelerator's file can say."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.hosts._given_words import unpacked_words, words_of
from fsdp_rules.hosts._prepared import prepared_alone
from fsdp_rules.hosts._values import literal
from fsdp_rules.project.given_words import PLUGIN
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

_TOGETHER = "Pass model and optimizer to one prepare() call."
_AUTOCAST = "Use torch.autocast around forward and loss for the old numbers, and cast outputs to fp32"


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
        yield Diagnosis(given["mixed_precision"], Level.REVIEW, told, _AUTOCAST)
    elif precision is not None and not precision.known:
        told = "assumes full precision: with bf16 or fp16 accelerate's FSDP2 runs without autocast"
        yield Diagnosis(given["mixed_precision"], Level.REVIEW, told, _AUTOCAST)
