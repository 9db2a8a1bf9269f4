"""What a file names that FSDP1's plain parameters allow and DTensors do not."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once

#: Words in the file that wraps: what is assumed, advice.
BEYOND = {
    re.compile(r"\bfrom apex\.optimizers import\b|\bapex\.optimizers\.Fused"): (
        "assumes this model is not trained with apex optimizers, whose kernels cannot read DTensors",
        "use torch.optim.AdamW(..., fused=True), or foreach=True",
    ),
    re.compile(r"\b(Linear4bit|Params4bit|load_in_4bit|bnb_4bit_\w+)\b"): (
        "assumes this model has no 4-bit bitsandbytes weights: fully_shard silently loses their quantization state",
        "keep models with such weights on FSDP1",
    ),
}


@once
def beyond(module: cst.Module, file: File) -> list[tuple[str, str]]:
    """What is assumed of the file of ``module``, and advised, by what its text names."""
    return [said for words, said in BEYOND.items() if words.search(file.text)]
