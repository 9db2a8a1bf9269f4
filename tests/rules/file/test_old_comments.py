"""Comments of arguments that are gone say nothing in the output; all others are kept."""

from __future__ import annotations

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite

SOURCE = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, rank):
    model = FSDP(
        model,
        # auto_wrap_policy=size_based_auto_wrap_policy,
        # Set by the launcher.
        device_id=rank,
        use_orig_params=True,  # needed by torch.compile
        # Bounds the memory.
        limit_all_gathers=True,
        sync_module_states=True,  # rank 0 reads the file
    )
    return model
"""


def test_what_says_nothing_any_more_is_gone() -> None:
    result = rewrite(SOURCE)
    assert isinstance(result, Changed)
    comments = [line.strip() for line in result.source.decode().splitlines() if "#" in line]
    assert comments == ["# Set by the launcher.", "# rank 0 reads the file"]
