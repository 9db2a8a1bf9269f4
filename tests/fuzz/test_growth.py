"""Time and memory are within a factor of the file's length: counted, so that a slow machine does not matter."""

from __future__ import annotations

import random

import pytest

from benchmarks.rewrite_speed import wrapping_source
from tests.fuzz import growth
from tests.fuzz.source_properties import rewritten


@pytest.mark.parametrize("number", range(5))
def test_equal_parts_cost_equal_work(number: int) -> None:
    growth.hold(growth.part(random.Random(f"growth {number}")).encode())


def test_places_that_look_back_over_the_file_cost_the_same_each() -> None:
    growth.hold(
        b"""model_@I = FSDP(net_@I)
out = model_@I(x)
for p in model_@I.parameters():
    p.data.mul_(2)
model_@I.zero_grad()
"""
    )


def test_the_work_on_wraps_grows_with_their_number() -> None:
    few, more, most = (
        growth.calls(lambda count=count: rewritten(wrapping_source(count).encode())) for count in (30, 60, 90)
    )
    assert most - more <= growth.MOST * (more - few)


def test_memory_is_within_a_factor_of_the_file() -> None:
    rewritten(wrapping_source(2).encode())
    for source in (wrapping_source(100).encode(), wrapping_source(200).encode()):
        assert growth.peak(lambda source=source: rewritten(source)) <= growth.BYTES_PER_BYTE * len(source)
