"""The torch versions at which FSDP2's behaviour changed, each named after what it brought."""

from __future__ import annotations

import torch
from packaging.version import Version

TORCH = Version(Version(torch.__version__).base_version)

# fully_shard became public in 2.6; before that it lived in torch.distributed._composable.
FLOOR = Version("2.6")

# On the CPU fully_shard runs in full since 2.8. Before, the streams of torch.cpu record no event, which ends the first
# forward in 2.6 and the first all-reduce of gradients in 2.7. The shim adds the event.
WORKS_ON_CPU = Version("2.8") <= TORCH

# Since 2.7 the gather for the backward does not count as a change of what autograd saved in the forward. Before that it
# does on the CPU, and the backward fails. The shim restores the count.
GATHER_KEEPS_VERSIONS = Version("2.7") <= TORCH

# fully_shard(ignored_params=) appeared in 2.7. Without it the shim unregisters ignored parameters, and tied ones that
# belong to an outer unit, while fully_shard collects the parameters to manage.
HAS_IGNORED_PARAMS = Version("2.7") <= TORCH

# reshard_after_forward=None ("the root keeps its parameters, the others free them") is spelled out since 2.8.
# Before that the root never frees its parameters, with any value.
HAS_AUTO_RESHARD = Version("2.8") <= TORCH

# set_force_sum_reduction_for_comms appeared in 2.8. Before that only reductions in fp16 divide by themselves, and the
# shim makes every reduction over gloo such a reduction.
HAS_FORCED_SUM = Version("2.8") <= TORCH

# Gloo's reduce-scatter averages for ReduceOp.AVG since 2.10 at the latest. In 2.8 it silently returns the sum, and
# before 2.8 its all-reduce refuses ReduceOp.AVG too. Between 2.8 and 2.10 the shim tries it once.
GLOO_AVERAGES = Version("2.10") <= TORCH

# FSDPModule.set_custom_reduce_scatter appeared in 2.9. Without it FSDP2 calls nothing to reduce gradients.
HAS_CUSTOM_REDUCE_SCATTER = Version("2.9") <= TORCH

# Tensor.grad_dtype appeared in 2.10. Without it a parameter takes no gradient of another dtype.
HAS_GRAD_DTYPE = Version("2.10") <= TORCH

# Where FSDP and tensor parallelism cut the same dimension of a parameter, torch shards unevenly and reads it back right
# since 2.10. Torch 2.6 and 2.7 refuse uneven parts. 2.8 trains with them, but full_tensor and every checkpoint silently
# exchange rows, so the shim refuses them.
HAS_UNEVEN_STRIDES = Version("2.10") <= TORCH

# torch.compile traces the question whether a module is a unit of FSDP2 since 2.10 at the latest. In 2.6 and 2.8 it
# fails there. The shim asks outside of the compiled code, which is split at that place.
TRACES_UNITS = Version("2.10") <= TORCH

# torch.distributed.checkpoint moves parameters that FSDP and tensor parallelism cut along one dimension to every other
# layout since 2.8 at the latest. In 2.6 it silently exchanges rows, and the shim warns once: do not move them.
MOVES_STRIDED_CHECKPOINTS = Version("2.8") <= TORCH
