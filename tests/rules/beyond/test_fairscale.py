"""FSDP903: fairscale's class of the same name."""

from __future__ import annotations

from tests.rules.helpers import check_findings, check_noop


def test_other_parts_of_fairscale_are_left_alone() -> None:
    check_noop("from fairscale.nn.model_parallel import initialize\nfrom fairscale.nn import checkpoint_wrapper\n")


def test_the_module_it_lives_in() -> None:
    source = "from fairscale.nn.data_parallel import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
    check_findings(source, {("FSDP903", "info")})
