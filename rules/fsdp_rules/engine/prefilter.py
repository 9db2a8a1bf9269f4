"""The cheapest question: do a file's bytes mention anything that a migration could touch?"""

from __future__ import annotations

MARKERS: tuple[bytes, ...] = (
    b"fsdp",
    b"FSDP",
    b"FullyShardedDataParallel",
    b"clip_grad_norm_",
    b".zero_grad(",
    b".parameters()",
    b"configure_optimizers",
    b"no_sync",
    b"summon_full_params",
    b"_fpw_module",
    b"ShardedGradScaler",
    b"ShardedTensor",
    b".module",
    b"state_dict(",
    b"model.forward(",
    b"model.generate(",
    b".data = ",
    b"flat_param",
    b"register_comm_hook",
)
#: What a file has that reduces norms of gradients over ranks; either alone is in too many files.
REDUCED = (b".grad", b"reduce")


def has_marker(data: bytes) -> bool:
    """Whether ``data`` (a source or a notebook, any ASCII-compatible encoding) may need a closer look.

    Loop markers such as ``clip_grad_norm_`` are in the list because a train loop that gets the wrapped model as a
    parameter often imports no FSDP name at all.
    """
    return any(marker in data for marker in MARKERS) or all(marker in data for marker in REDUCED)
