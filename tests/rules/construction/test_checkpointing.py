"""FSDP118: activation checkpointing."""

from __future__ import annotations

import pytest

from tests.rules.helpers import check_noop, check_rewrites, findings

HEAD = """
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
    checkpoint_wrapper,
)
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(HEAD + source) if found.rule == "FSDP118"]


def test_fairscales_wrapper_still_takes_the_argument() -> None:
    check_noop(
        "from fairscale.nn import checkpoint_wrapper\n\nblock = checkpoint_wrapper(block, offload_to_cpu=False)\n"
    )


def test_checkpointing_before_wrapping_is_left_alone() -> None:
    assert (
        levels("def build(net):\n    apply_activation_checkpointing(net)\n    net = FSDP(net)\n    return net\n") == []
    )


def test_checkpointing_after_wrapping_is_left_alone() -> None:
    assert levels("net = FSDP(net)\napply_activation_checkpointing(net)\n") == []


def test_offloading() -> None:
    check_rewrites(
        """
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(net, kind):
    net.block = checkpoint_wrapper(net.block, offload_to_cpu=True, checkpoint_impl=kind)
    net.head = checkpoint_wrapper(net.head, offload_to_cpu=False)
    net = FSDP(net)
    return net
""",
        """
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    checkpoint_wrapper,
    offload_wrapper,
)
from torch.distributed.fsdp import fully_shard

def build(net, kind):
    net.block = offload_wrapper(checkpoint_wrapper(net.block, checkpoint_impl=kind))
    net.head = checkpoint_wrapper(net.head)
    fully_shard(net)
    return net
""",
    )


def test_what_is_not_written_out_is_not_guessed() -> None:
    assert levels("net = FSDP(net)\nblock = checkpoint_wrapper(block, offload_to_cpu=config.offload)\n") == ["manual"]


LINES = "functools.partial(\n        checkpoint_wrapper,\n{}    )"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            LINES.format("        offload_to_cpu=False,\n        preserve=keep,\n"),
            LINES.format("        preserve=keep,\n"),
        ),
        (
            LINES.format("        preserve = keep,\n        offload_to_cpu=False,  # none\n"),
            LINES.format("        preserve = keep,  # none\n"),
        ),
        (
            "functools.partial(checkpoint_wrapper,\n                      preserve=keep, offload_to_cpu=False)",
            "functools.partial(checkpoint_wrapper,\n                      preserve=keep)",
        ),
        ("checkpoint_wrapper(offload_to_cpu=False, module=net)", "checkpoint_wrapper(module=net)"),
    ],
)
def test_the_other_arguments_stay_on_their_lines(before: str, after: str) -> None:
    source = """
import functools

from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from w import wrap

def build(net, keep):
    net = wrap(net)
    made = {}
    return made
"""
    wrap = f"{HEAD}\ndef wrap(net):\n    return FSDP(net)\n"
    check_rewrites(source.format(before), source.format(after), w=wrap)
