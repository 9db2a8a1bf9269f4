"""FSDP116: wrapping by annotation."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_findings, check_rewrites, findings


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


def test_the_class_may_come_in_a_dictionary() -> None:
    check_rewrites(
        """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
        from torch.distributed.fsdp.wrap import enable_wrap, wrap

        options = dict(wrapper_cls=FSDP, use_orig_params=True)
        with enable_wrap(**options):
            model = wrap(build())
        """,
        """
        import fsdp_compat
        from fsdp_compat import enable_wrap, wrap

        options = dict(wrapper_cls=fsdp_compat.shard, use_orig_params=True)
        with enable_wrap(**options):
            model = wrap(build())
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


BLOCK = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import enable_wrap, wrap

def build(model, args):
    # the parts first
    with enable_wrap(wrapper_cls=FSDP, {bound}):
        {body}
        # and that is all
    return model
"""


def test_the_calls_of_one_block_are_native_and_comments_are_kept() -> None:
    body = "model.head = wrap(wrap(model.head))\n        model = wrap(model, use_orig_params=False)"
    check_rewrites(
        BLOCK.format(bound="use_orig_params=True", body=body),
        """
        from torch.distributed.fsdp import fully_shard

        def build(model, args):
            # the parts first
            model.head = fully_shard(model.head)
            fully_shard(model)
            # and that is all
            return model
        """,
    )


@pytest.mark.parametrize(
    ("bound", "body", "others", "reason"),
    [
        ("**args", "model = wrap(model)", {}, "the content of **args is only known at run time"),
        ("*args", "model = wrap(model)", {}, "not all of its arguments are keyword arguments"),
        ("use_orig_params=True", "model = Net()", {}, "no wrap() in this block is known"),
        (
            "use_orig_params=True",
            "model = wrap(Net())",
            {"net": "from torch.distributed.fsdp.wrap import wrap\nlayer = wrap(Layer())\n"},
            "wrap() in another file may run inside this block",
        ),
        (
            "use_orig_params=True",
            "args.f(lambda: model)\n    wrap(model)",
            {},
            "a wrap() outside of this block may run",
        ),
        ("device_id=args.next()", "wrap(model)", {}, "args.next() is computed once and used by every call"),
        ("use_orig_params=True", "def late():\n            wrap(model)", {}, "a wrap() in this block runs when its"),
        (
            "use_orig_params=True, **{}), args.other(",
            "wrap(model)",
            {},
            "its block has other contexts too, or it is not entered by a with statement",
        ),
    ],
)
def test_blocks_that_keep_the_helper(bound: str, body: str, others: dict[str, str], reason: str) -> None:
    source = BLOCK.format(bound=bound, body=body)
    (found,) = [one for one in findings(source, **others) if one.rule == "FSDP116"]
    assert reason in found.message and found.level.value == "review"
