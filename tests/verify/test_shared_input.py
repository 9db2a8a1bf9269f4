"""An input that units share, and that each reads twice, differs in its gradient's last digit; the cause is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.verdict import Verdict
from tests.pool import Pool
from tests.verify import shared


def compared(directory: Path, layer: type[shared.Layer]) -> Verdict:
    return verdict_of(*(read(directory / layer.__name__ / side) for side in ("before", "after")))


@pytest.mark.parametrize(
    ("deep", "cause", "words"),
    [
        (1, "shared-input", "the gradient of output 0 of encoder differs within rounding"),
        (0, "order-of-summation", "gradients differ by rounding"),
    ],
)
def test_the_order_of_the_sum_is_named(pool: Pool, tmp_path: Path, deep: int, cause: str, words: str) -> None:
    pool.run(shared.run, 2, str(tmp_path), deep)
    verdict = compared(tmp_path, shared.Layer)
    assert verdict.first is not None
    assert verdict.cause is not None
    assert (verdict.cause.cause, verdict.first.step) == (cause, 0)
    assert words in verdict.cause.message
    assert compared(tmp_path, shared.Single).first is None
