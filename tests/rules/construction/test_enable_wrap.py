"""FSDP116: wrapping by annotation."""

from __future__ import annotations

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_findings, check_rewrites


def test_another_wrapper_class_is_left_alone() -> None:
    source = """
        from torch.distributed.fsdp.wrap import enable_wrap, wrap
        from checkpoints import Recompute

        with enable_wrap(wrapper_cls=Recompute):
            model = wrap(model)
        """
    check_findings(source, set())


def test_wrap_calls_stay_as_they_are_nested_or_not() -> None:
    check_rewrites(
        """
        import torch.nn as nn
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import enable_wrap, wrap


        class Net(nn.Module):
            def __init__(self, **options):
                super().__init__()
                with enable_wrap(wrapper_cls=FSDP, **options):
                    self.first = wrap(wrap(nn.Linear(2, 2)))
                    self.rest = nn.ModuleList(wrap(nn.Linear(2, 2)) for _ in range(3))
        """,
        """
        import fsdp_compat
        import torch.nn as nn
        from fsdp_compat import enable_wrap, wrap


        class Net(nn.Module):
            def __init__(self, **options):
                super().__init__()
                with enable_wrap(wrapper_cls=fsdp_compat.shard, **options):
                    self.first = wrap(wrap(nn.Linear(2, 2)))
                    self.rest = nn.ModuleList(wrap(nn.Linear(2, 2)) for _ in range(3))
        """,
    )


def test_the_class_may_come_through_a_name() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import enable_wrap

        wrapper = FSDP
        with enable_wrap(wrapper_cls=wrapper):
            model = build()
        """,
        """
        import fsdp_compat
        from fsdp_compat import enable_wrap

        wrapper = fsdp_compat.shard
        with enable_wrap(wrapper_cls=wrapper):
            model = build()
        """,
    )


def test_without_helpers_nothing_is_rewritten() -> None:
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import enable_wrap

        with enable_wrap(wrapper_cls=FSDP):
            model = build()
        """
    check_findings(source, {("FSDP116", "manual")}, Settings(helpers="never"))
