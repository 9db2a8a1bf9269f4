"""What the matrix leaves out, or compares with a tolerance, because the two do not agree: the rewrite has to say so."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

import pytest

from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed
from tests.parity.programs import program
from tests.parity.specs import EXCLUDED, FACTORS, Spec, valid
from tests.parity.tolerance import BUFFERS, CLIPPED, NO_SHARD, NO_SHARD_LOW, NO_SYNC, Tolerance, tolerance
from tests.rules.helpers import findings, rewrite

ADAMW = next(reason for reason in EXCLUDED if reason.startswith("AdamW where the last bit"))
IGNORED = next(reason for reason in EXCLUDED if reason.startswith("active clipping with a trained ignored"))
#: What a finding says of each difference; that of the norm, in the sixth digit, is stated without a question.
SAID = {
    IGNORED: (
        "FSDP201",
        Level.REVIEW,
        r"assuming ignored parameters are frozen or nothing is clipped \(FSDP1 clips them",
    ),
    CLIPPED: ("FSDP201", None, r"FSDP1's to 1e-6"),
    NO_SHARD: (None, Level.REVIEW, r"FSDP1 rounds accumulated gradients twice under NO_SHARD"),
    NO_SHARD_LOW: (None, Level.REVIEW, r"FSDP1 rounds accumulated gradients twice under NO_SHARD"),
    BUFFERS: ("FSDP101", Level.REVIEW, r"buffers are cast once"),
}


def _with(difference: Tolerance | str) -> Callable[[Spec], bool]:
    if difference == IGNORED:
        return lambda spec: [reason for reason, excludes in EXCLUDED.items() if excludes(spec)] == [IGNORED]
    return lambda spec: (
        tolerance(spec) == difference
        and (valid(spec) or [reason for reason, excludes in EXCLUDED.items() if excludes(spec)] == [ADAMW])
    )


def _drawn(allowed: Callable[[Spec], bool], count: int) -> Iterator[Spec]:
    """Combinations whose rewrite is native as often as it can be."""
    chooser = random.Random(5)
    plain = {
        "kwargs": "direct",
        "call": "rebind",
        "policy": "none",
        "group": "none",
        "spelling": "literal",
        "model": "mlp",
        "place": "script",
    }
    while count:
        spec = {name: chooser.choice(values) for name, values in FACTORS.items()} | plain
        if allowed(spec):
            count -= 1
            yield spec


@pytest.mark.parametrize("difference", SAID, ids=lambda difference: getattr(difference, "reason", difference)[:40])
def test_the_rewrite_says_that_the_two_differ(difference: Tolerance | str) -> None:
    rule, level, text = SAID[difference]
    for spec in _drawn(_with(difference), 4):
        found = findings(program("left-out", spec).source)
        said = [each for each in found if rule in (None, each.rule) and level in (None, each.level)]
        assert any(re.search(text, each.message) for each in said), (spec, said)


def test_gradients_accumulate_in_the_dtype_of_the_parameters_or_a_finding_says_that_they_do_not() -> None:
    said = r"gradients accumulate in reduce_dtype \(FSDP1: param_dtype\)"
    for spec in _drawn(_with(NO_SYNC), 6):
        result = rewrite(program("left-out", spec).source)
        assert isinstance(result, Changed)
        kept = b"fsdp_compat.no_sync(" in result.source
        assert kept is (spec["precision"] == "bf16"), spec
        assert kept or any(re.search(said, found.message) for found in result.findings), spec
