"""The torch versions at which FSDP2's behaviour changed, each named after what it brought."""

from __future__ import annotations

import torch
from packaging.version import Version

TORCH = Version(Version(torch.__version__).base_version)

# fully_shard became public in 2.6; before that it lived in torch.distributed._composable.
FLOOR = Version("2.6")

# fully_shard(ignored_params=) appeared in 2.7; without it a parameter cannot be kept out of a unit.
HAS_IGNORED_PARAMS = Version("2.7") <= TORCH

# reshard_after_forward=None ("the root keeps its parameters, the others free them") is spelled out since 2.8.
# Before that the root never frees its parameters, whatever is passed.
HAS_AUTO_RESHARD = Version("2.8") <= TORCH

# set_force_sum_reduction_for_comms appeared in 2.8.
HAS_FORCED_SUM = Version("2.8") <= TORCH

# In 2.8 gloo's reduce-scatter returns the sum for ReduceOp.AVG, without a word; in 2.13 it averages.
GLOO_AVERAGES = Version("2.13") <= TORCH
