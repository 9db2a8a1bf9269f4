"""What the tests of constructor arguments share: one call with an argument, and what it becomes."""

from __future__ import annotations

import textwrap

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

IMPORTS = """\
import functools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import BackwardPrefetch, CPUOffload, MixedPrecision, ShardingStrategy
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy, _or_policy, lambda_auto_wrap_policy, size_based_auto_wrap_policy, transformer_auto_wrap_policy,
)
"""


def wrapped(arguments: str, above: str = "", parameters: str = "model, args", **others: str) -> str:
    """The output for a function that wraps its model with ``arguments`` below the statements ``above``."""
    body = textwrap.indent(textwrap.dedent(above).strip(), "    ")
    call = f"    model = FSDP(model, {arguments})\n    return model\n"
    source = f"{IMPORTS}\n\ndef build({parameters}):\n{body}\n{call}"
    result = rewrite(source, **others)
    assert isinstance(result, Changed), result
    text = result.source.decode()
    compile(text, "after.py", "exec", dont_inherit=True)
    return text


def is_native(text: str) -> bool:
    """Whether the output shards by ``fully_shard`` alone."""
    return "fully_shard(" in text and "fsdp_compat" not in text
