"""The most bytes that tensors of this process have held, by their storages and whatever allocates them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveTensors(TorchDispatchMode):
    """Knows each storage that an operation reads or writes until it is freed, and asks for its size around each.

    FSDP frees and allocates parameters by resizing storages, which no operation shows, but their sizes do. What a
    kernel needs inside is not seen, nor is what gloo copies.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._known: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        self._see((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._see(result)
        self.peak = max(self.peak, self.now())
        return result

    def now(self) -> int:
        """Bytes of all storages that live."""
        storages = (known() for known in list(self._known.values()))
        return sum(storage.nbytes() for storage in storages if storage is not None)

    def _see(self, values: Any) -> None:
        for value in tree_iter(values):
            if isinstance(value, torch.Tensor) and type(value) is not torch.Tensor and hasattr(value, "_local_tensor"):
                value = value._local_tensor
            if isinstance(value, torch.Tensor) and value.device.type != "meta":
                storage = value.untyped_storage()
                key = storage._cdata
                if key not in self._known or self._known[key]() is None:
                    self._known[key] = weakref.ref(storage, lambda _, key=key: self._known.pop(key, None))
