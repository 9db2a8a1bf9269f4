"""Keep parameters out of one call of ``fully_shard``, whatever the version of torch."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import Any

from torch import nn

from fsdp_compat.torch_.versions import HAS_IGNORED_PARAMS


@contextlib.contextmanager
def leaving_out(unit: nn.Module, params: Collection[nn.Parameter]) -> Iterator[dict[str, Any]]:
    """Inside, ``fully_shard(unit, **arguments)`` does not manage ``params``; ``arguments`` is what this yields.

    Torch older than 2.7 has no argument for it, so there ``params`` are not registered anywhere in ``unit`` inside.
    """
    if HAS_IGNORED_PARAMS:
        yield {"ignored_params": set(params)} if params else {}
        return
    left = set(params)
    places = [
        (module, name, param)
        for module in unit.modules()
        for name, param in module.named_parameters(recurse=False, remove_duplicate=False)
        if param in left
    ]
    for module, name, _ in places:
        # None keeps the name's position, and with it the order of the state dict.
        module._parameters[name] = None
    try:
        yield {}
    finally:
        for module, name, param in places:
            module._parameters[name] = param
