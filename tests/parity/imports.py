"""The import block of a parity program, in one of the forms that codebases use."""

from __future__ import annotations

import re
from collections.abc import Mapping

CONFIG_NAMES = (
    "BackwardPrefetch",
    "FullOptimStateDictConfig",
    "FullStateDictConfig",
    "MixedPrecision",
    "ShardingStrategy",
    "StateDictType",
)
WRAP_NAMES = (
    "CustomPolicy",
    "ModuleWrapPolicy",
    "_or_policy",
    "always_wrap_policy",
    "enable_wrap",
    "lambda_auto_wrap_policy",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
    "wrap",
)
_FSDP = "torch.distributed.fsdp"
_CLASS = "FullyShardedDataParallel"
_CHECKPOINT_WRAPPER = "torch.distributed.algorithms._checkpoint.checkpoint_wrapper"


def with_imports(body: str, form: str) -> str:
    """``body`` behind imports for the names that it uses, with FSDP1's own names spelled in ``form``.

    In ``body`` they stand bare, and the class as ``FSDP``.
    """
    used = set(re.findall(r"\b[A-Za-z_]\w*\b", re.sub(r'"[^"\n]*"', "", body)))
    lines = [f"import {name}" for name in ("contextlib", "functools", "os") if name in used]
    lines += ["import sys", "", "import torch", "import torch.distributed as dist"]
    lines += ["import torch.distributed.fsdp as fsdp"] if form == "dotted" else []
    lines += ["import torch.nn as nn", "import torch.nn.functional as F"]
    for names, module in (
        (("apply_activation_checkpointing", "checkpoint_wrapper"), _CHECKPOINT_WRAPPER),
        (("init_device_mesh",), "torch.distributed.device_mesh"),
    ):
        if chosen := [name for name in names if name in used]:
            lines.append(f"from {module} import {', '.join(chosen)}")
    configs = [name for name in CONFIG_NAMES if name in used]
    if form == "plain":
        lines.append(f"from {_FSDP} import {', '.join(sorted([*configs, _CLASS]))}")
        body = _renamed(body, {"FSDP": _CLASS})
    elif form == "dotted":
        body = _renamed(body, {"FSDP": f"fsdp.{_CLASS}"} | {name: f"fsdp.{name}" for name in configs})
    elif form == "deep":
        lines += [f"from {_FSDP}.api import {', '.join(configs)}"] if configs else []
        lines.append(f"from {_FSDP}.fully_sharded_data_parallel import {_CLASS} as FSDP")
    else:
        lines.append(f"from {_FSDP} import {', '.join(sorted([*configs, f'{_CLASS} as FSDP']))}")
    if wrap := [name for name in WRAP_NAMES if name in used]:
        lines.append(f"from {_FSDP}.wrap import {', '.join(wrap)}")
    return "\n".join(lines) + "\n\n" + body


def _renamed(body: str, names: Mapping[str, str]) -> str:
    for old, new in names.items():
        body = re.sub(rf"(?<![\w.\"]){old}\b", new, body)
    return body
