"""What FSDP1 needs so that it runs on CPU tensors over gloo. Nothing of this touches FSDP2."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock


@contextlib.contextmanager
def fsdp1_on_cpu() -> Iterator[None]:
    """Lift one check, one crash and one mix-up of FSDP1 that concern accelerators only.

    ``sync_module_states`` insists on GPU tensors, although its broadcast works over gloo. Copying a full state dict
    to the CPU frees storage that, on the CPU, is the state dict itself. The older functions for optimizer states copy
    to the CPU too, which makes no copy there, so that all states become the last one.
    """
    from torch.distributed.fsdp import _init_utils, api
    from torch.distributed.fsdp.fully_sharded_data_parallel import FullyShardedDataParallel

    with contextlib.ExitStack() as stack:
        check = "_check_module_states_for_sync_module_states"
        stack.enter_context(mock.patch.object(_init_utils, check, lambda states: None))
        for config in (api.FullStateDictConfig, api.FullOptimStateDictConfig):
            stack.enter_context(mock.patch.object(config, "__init__", _never_offloading(config.__init__)))
        gather = functools.partial(FullyShardedDataParallel._optim_state_dict_impl, cpu_offload=False)
        stack.enter_context(mock.patch.object(FullyShardedDataParallel, "_optim_state_dict_impl", _first(gather)))
        yield


def _never_offloading(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)
    def on_device(config: Any, *args: Any, **kwargs: Any) -> None:
        init(config, *args, **kwargs)
        config.offload_to_cpu = False

    return on_device


def _first(gather: Callable[..., dict[str, Any]]) -> staticmethod[..., dict[str, Any]]:
    """``gather`` with its own ``cpu_offload``, whatever its callers say."""

    def on_device(*args: Any, cpu_offload: bool = False, **kwargs: Any) -> dict[str, Any]:
        return gather(*args, **kwargs)

    return staticmethod(on_device)
