"""What FSDP1's ``MixedPrecision`` says, put in FSDP2's terms: policies, BatchNorm in full precision, buffer dtypes."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_map

from fsdp_compat.torch_.versions import HAS_GRAD_DTYPE, TORCH
from fsdp_compat.vocabulary import MixedPrecision

_FULL_PRECISION_IN_EVAL = "FSDP_USE_FULL_PREC_IN_EVAL"


@dataclasses.dataclass(frozen=True)
class Precision:
    """One unit's precision: FSDP2's policy plus what that policy has no field for.

    ``policy`` never casts inputs; ``cast_inputs`` and ``cast_root_inputs`` say where they are cast, as FSDP1 does
    it: by default in the root alone. Modules of ``full_precision_classes`` become units of their own, in fp32.
    ``full_in_eval`` is what the environment says about modules in eval mode.
    """

    policy: MixedPrecisionPolicy
    buffer_dtype: torch.dtype | None
    cast_inputs: bool
    cast_root_inputs: bool
    full_precision_classes: tuple[type[nn.Module], ...]
    keep_low_precision_grads: bool
    full_in_eval: bool

    @staticmethod
    def read(value: MixedPrecision | MixedPrecisionPolicy | None) -> Precision | None:
        """Read the ``mixed_precision`` argument; None where it is None.

        An FSDP2 ``MixedPrecisionPolicy`` is taken to mean what FSDP1 would mean by it: its ``cast_forward_inputs``
        is about the root, and BatchNorm stays in fp32.
        Raises NotImplementedError for what FSDP2 cannot do, TypeError for anything else.
        """
        if value is None:
            return None
        full_in_eval = os.environ.get(_FULL_PRECISION_IN_EVAL) == "1"
        if isinstance(value, MixedPrecisionPolicy):
            policy = dataclasses.replace(value, cast_forward_inputs=False)
            return Precision(policy, None, False, value.cast_forward_inputs, (_BatchNorm,), False, full_in_eval)
        if not isinstance(value, MixedPrecision):
            raise TypeError(f"mixed_precision takes a MixedPrecision or a MixedPrecisionPolicy, not {type(value)}")
        if value.keep_low_precision_grads and not HAS_GRAD_DTYPE:
            raise NotImplementedError(
                f"keep_low_precision_grads=True needs gradients with a dtype different from their parameters, "
                f"which tensors support since torch 2.10 (grad_dtype); this is {TORCH}. Drop it: gradients get the "
                f"parameters' dtype."
            )
        # FSDP1 reduces in the dtype it computes in; FSDP2 stopped taking that for granted in 2.15.
        reduce_dtype = value.reduce_dtype or value.param_dtype
        return Precision(
            policy=MixedPrecisionPolicy(value.param_dtype, reduce_dtype, cast_forward_inputs=False),
            buffer_dtype=value.buffer_dtype,
            cast_inputs=value.cast_forward_inputs,
            cast_root_inputs=value.cast_root_forward_inputs,
            full_precision_classes=tuple(value._module_classes_to_ignore),
            keep_low_precision_grads=value.keep_low_precision_grads,
            full_in_eval=full_in_eval,
        )

    def unit_policy(self, *, is_root: bool, has_parameters: bool) -> MixedPrecisionPolicy:
        """The policy that ``fully_shard`` gets. A unit without parameters casts nothing in FSDP1, unless the root."""
        cast = (self.cast_inputs and has_parameters) or (self.cast_root_inputs and is_root)
        return dataclasses.replace(self.policy, cast_forward_inputs=cast)


def run_in_full_precision(modules: Iterable[nn.Module]) -> None:
    """Hook each module to compute in fp32 and to give its output back in the dtype of its input.

    Must run before the modules are sharded: the hooks have to stand inside FSDP2's.
    """
    for module in modules:
        cast = _CastAround()
        module.register_forward_pre_hook(cast.before)
        module.register_forward_hook(cast.after)


class _CastAround:
    def __init__(self) -> None:
        self._input_dtype: torch.dtype | None = None

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        self._input_dtype = None
        return tuple(tree_map(self._to_fp32, args))

    def after(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        if self._input_dtype is None:
            return output
        return tree_map(partial(_cast_floating, self._input_dtype), output)

    def _to_fp32(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point() and value.dtype != torch.float32:
            self._input_dtype = value.dtype
        return _cast_floating(torch.float32, value)


def _cast_floating(dtype: torch.dtype, value: Any) -> Any:
    return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
