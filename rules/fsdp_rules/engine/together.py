"""Which rules are about calls that work with models of their own generation alone."""

from __future__ import annotations

#: FSDP1's calls do nothing, or fail, on FSDP2's models, and FSDP2's on FSDP1's. If one of them stays, all have to.
TOGETHER = frozenset(
    {f"FSDP{number}" for number in (*range(101, 111), 115, 116, 119, 201, 202, 203, 208, *range(301, 307), 309, 310)}
)
