"""Where two right implementations cannot agree to the last bit, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: FSDP1 sums the squares of a flat shard, FSDP2 those of each parameter's shard: the same sum in another order.
NORM_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Tolerance:
    """How far losses and weights may lie apart, relative to the largest value of the tensor, and why.

    Where no value of a tensor reaches :data:`SMALL`, the difference is taken relative to that.
    """

    relative: float
    reason: str


#: Biases start at zero and move by a few learning rates; the noise in them comes from gradients of the usual size.
SMALL = 0.05

EXACT = Tolerance(0.0, "bit for bit")
CLIPPED = Tolerance(1e-5, "active clipping scales by the norm, which agrees to 1e-6")
NO_SYNC = Tolerance(
    3e-2, "without synchronisation FSDP1 accumulates gradients in the parameters' dtype, FSDP2 in the reduction dtype"
)
NO_SHARD = Tolerance(
    1e-5,
    "under NO_SHARD FSDP1 adds each local gradient to the already reduced sum and reduces it again, so it rounds twice",
)
NO_SHARD_LOW = Tolerance(3e-2, f"{NO_SHARD.reason}, here in bf16")
BUFFERS = Tolerance(
    0.0,
    "bit for bit, except that a buffer cast to buffer_dtype may be saved in that dtype: FSDP1 casts it back unless the"
    " root has no direct parameters, fsdp_compat always does, and plain FSDP2 never does (a finding says so)",
)
TOLERANCES = (BUFFERS, CLIPPED, NO_SHARD, NO_SHARD_LOW, NO_SYNC)


def tolerance(spec: Mapping[str, str]) -> Tolerance:
    """What may be asked of the two runs of a parity program."""
    if spec["accumulate"] == "plain" and spec["strategy"] == "NO_SHARD":
        return NO_SHARD_LOW if spec["precision"].startswith("bf16") else NO_SHARD
    if spec["accumulate"] not in ("none", "plain") and spec["precision"] in ("bf16", "bf16_reduce"):
        return NO_SYNC
    if spec["clip"] == "active":
        return CLIPPED
    return BUFFERS if spec["precision"] == "bf16" else EXACT
