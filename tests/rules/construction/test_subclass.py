"""FSDP119: classes derived from FSDP1's wrapper."""

from __future__ import annotations

from tests.rules.helpers import check_findings, check_noop


def test_classes_of_that_name_from_elsewhere_are_left_alone() -> None:
    check_noop("from mine import FullyShardedDataParallel\n\nclass A(FullyShardedDataParallel):\n    pass\n")


def test_one_of_several_bases() -> None:
    source = """
        import torch.distributed.fsdp

        class A(Logged, torch.distributed.fsdp.FullyShardedDataParallel):
            pass
        """
    check_findings(source, {("FSDP119", "manual")})
