"""FSDP108: what FSDP1 left out of sharding."""

from __future__ import annotations

from tests.rules.helpers import check_findings, check_rewrites

BUILD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\ndef build(model, kept):\n"


def test_the_old_name_of_ignored_states_is_replaced() -> None:
    check_rewrites(
        BUILD + "    return FSDP(\n        model,\n        ignored_parameters=list(kept),  # head\n    )\n",
        "import fsdp_compat\n\ndef build(model, kept):\n"
        "    return fsdp_compat.shard(\n        model,\n        ignored_states=list(kept),  # head\n    )\n",
    )


def test_the_old_name_in_a_dictionary_is_left_to_a_human() -> None:
    source = BUILD + '    return FSDP(model, **{"ignored_parameters": list(kept)})\n'
    check_findings(source, {("FSDP108", "manual")})
