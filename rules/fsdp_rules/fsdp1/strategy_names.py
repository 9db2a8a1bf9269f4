"""FSDP1's sharding strategies by their names, and what they share."""

from __future__ import annotations

HYBRID = frozenset({"HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"})
#: Those that keep parameters gathered after a forward, and after a backward that does not reduce gradients.
ZERO2 = frozenset({"SHARD_GRAD_OP", "_HYBRID_SHARD_ZERO2"})
#: Those that need a mesh of their own.
MESHED = HYBRID | {"NO_SHARD"}
NAMES = frozenset({"FULL_SHARD", "NO_SHARD", *HYBRID, *ZERO2})
