"""The torch versions at which FSDP2's behaviour changed, each named after what it brought."""

from __future__ import annotations

import torch
from packaging.version import Version

TORCH = Version(Version(torch.__version__).base_version)

# fully_shard became public in 2.6; before that it lived in torch.distributed._composable.
FLOOR = Version("2.6")

# fully_shard works on the CPU since 2.8. In older versions the streams of torch.cpu cannot record events, so 2.6 fails
# in the first forward and 2.7 in the first all-reduce of gradients. The shim adds the event.
WORKS_ON_CPU = Version("2.8") <= TORCH

# Since 2.7 the all-gather in the backward no longer counts as an in-place change of tensors that autograd saved in the
# forward. Before that, it counts as one on the CPU, and the backward fails. The shim restores the version counter.
GATHER_KEEPS_VERSIONS = Version("2.7") <= TORCH

# fully_shard(ignored_params=) appeared in 2.7. Without it the shim unregisters ignored parameters, and tied parameters
# that belong to an outer unit, while fully_shard collects the parameters to manage.
HAS_IGNORED_PARAMS = Version("2.7") <= TORCH

# reshard_after_forward=None ("the root keeps its parameters, the others free them") exists since 2.8.
# Before that the root never frees its parameters, whatever the value.
HAS_AUTO_RESHARD = Version("2.8") <= TORCH

# set_force_sum_reduction_for_comms appeared in 2.8. Before that only fp16 reductions divide separately instead of
# averaging, and the shim makes every reduction over gloo do so.
HAS_FORCED_SUM = Version("2.8") <= TORCH

# Gloo's reduce-scatter supports ReduceOp.AVG since 2.10 at the latest. In 2.8 it silently returns the sum, and before
# 2.8 its all-reduce raises an error for ReduceOp.AVG too. Between 2.8 and 2.10, the shim tests once whether it works.
GLOO_AVERAGES = Version("2.10") <= TORCH

# FSDPModule.set_custom_reduce_scatter appeared in 2.9. Without it FSDP2 calls no custom code to reduce gradients.
HAS_CUSTOM_REDUCE_SCATTER = Version("2.9") <= TORCH

# Tensor.grad_dtype appeared in 2.10. Without it a parameter cannot have a gradient of another dtype.
HAS_GRAD_DTYPE = Version("2.10") <= TORCH

# If FSDP and tensor parallelism shard the same dimension of a parameter, uneven shards work since torch 2.10. Torch 2.6
# and 2.7 raise an error for them. 2.8 trains with them, but full_tensor and every checkpoint silently swap rows, so the
# shim raises an error.
HAS_UNEVEN_STRIDES = Version("2.10") <= TORCH

# Since 2.10 at the latest, torch.compile can trace the check for whether a module is an FSDP2 unit. In 2.6 and 2.8 it
# fails there. The shim runs the test outside the compiled code, which causes a graph break.
TRACES_UNITS = Version("2.10") <= TORCH

# torch.distributed.checkpoint can load parameters that FSDP and tensor parallelism shard along the same dimension into
# any other layout since 2.8 at the latest. In 2.6 it silently swaps rows, and the shim warns once not to do this.
MOVES_STRIDED_CHECKPOINTS = Version("2.8") <= TORCH
