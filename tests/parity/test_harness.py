"""The comparison goes red at the last bit, and the programs are what they are said to be."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from pathlib import Path
from typing import Any

from tests.parity.compare import differences
from tests.parity.harness import Verdict, judge, run
from tests.parity.ordered import sums_in_rank_order
from tests.parity.programs import programs
from tests.parity.specs import FACTORS, Spec, pairs, valid
from tests.parity.tolerance import CLIPPED, EXACT
from tests.pool import Pool


def result(**changes: Any) -> dict[str, Any]:
    import torch

    weights = {"a": torch.arange(1.0, 7.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.int64)}
    return {"losses": [[1.0, 0.5], [2.0, 0.25]], "norms": [3.0], "extra": [[1.0]], "weights": weights} | changes


def test_equal_results_do_not_differ() -> None:
    assert differences(result(), result(), EXACT) == []


def test_one_unit_in_the_last_place_of_a_loss_is_seen() -> None:
    losses = [[1.0, 0.5], [2.0, math.nextafter(0.25, 1)]]
    assert differences(result(), result(losses=losses), EXACT) == ["loss[1][1]: 0.25 became 0.25000000000000006"]


def test_one_unit_in_the_last_place_of_a_weight_is_seen() -> None:
    import torch

    weights = dict(result()["weights"])
    weights["a"] = torch.nextafter(weights["a"], torch.tensor(math.inf))
    (line,) = differences(result(), result(weights=weights), EXACT)
    assert line.startswith("weight a: up to 4.77e-07 apart")
    assert differences(result(), result(weights=weights), CLIPPED) == []


def test_names_and_dtypes_of_weights_count() -> None:
    weights = result()["weights"]
    prefixed = {f"_orig_mod.{name}": value for name, value in weights.items()}
    assert differences(result(), result(weights=prefixed), CLIPPED) == [
        "weight: missing a, b",
        "weight: new _orig_mod.a, _orig_mod.b",
    ]
    halved = weights | {"a": weights["a"].bfloat16()}
    (line,) = differences(result(), result(weights=halved), CLIPPED)
    assert line == "weight a: torch.float32 (2, 3) became torch.bfloat16 (2, 3)"


def test_norms_may_differ_in_the_seventh_digit_but_not_in_the_fifth() -> None:
    assert differences(result(), result(norms=[3.000001]), EXACT) == []
    assert differences(result(), result(norms=[3.00001]), EXACT) == ["norm[0]: 3.0 became 3.00001"]
    assert differences(result(), result(norms=[]), EXACT) == ["norm: 1 values became 0"]


def test_nan_equals_nan_alone() -> None:
    import torch

    nan = result(losses=[[math.nan]])
    assert differences(nan, nan, EXACT) == []
    assert differences(nan, result(losses=[[1.0]]), CLIPPED) == ["loss[0][0]: nan became 1.0"]
    broken = result(weights={"a": torch.tensor([math.nan])})
    assert differences(result(weights={"a": torch.tensor([1.0])}), broken, CLIPPED) != []


def test_gloo_sums_by_place_from_three_processes_on_but_not_in_rank_order(pool: Pool) -> None:
    assert pool.run(sum_at_two_places, 2, False) == [True] * 2
    assert pool.run(sum_at_two_places, 4, False) == [False] * 4
    assert pool.run(sum_at_two_places, 4, True) == [True] * 4


def sum_at_two_places(rank: int, world_size: int, ordered: bool) -> bool:
    """Whether the mean of the same numbers is the same bits when they stand elsewhere in the buffer."""
    import torch
    import torch.distributed as dist

    numbers = torch.randn(4096, generator=torch.Generator().manual_seed(rank))
    with sums_in_rank_order() if ordered else contextlib.nullcontext():
        means = []
        for shift in (0, 1024):
            shard = torch.empty(4096 // world_size)
            dist.reduce_scatter_tensor(shard, numbers.roll(shift), op=dist.ReduceOp.AVG)
            shards = [torch.empty_like(shard) for _ in range(world_size)]
            dist.all_gather(shards, shard)
            means.append(torch.cat(shards).roll(-shift))
    return torch.equal(*means)


def test_every_pair_of_values_that_fsdp1_runs_is_in_a_program() -> None:
    every = [program.spec for program in programs()]
    assert len(every) >= 200
    assert all(valid(spec) for spec in every)
    seen = set().union(*(pairs(spec) for spec in every))
    unseen = {
        (left, a, right, b)
        for left, right in itertools.combinations(FACTORS, 2)
        for a, b in itertools.product(FACTORS[left], FACTORS[right])
        if frozenset({(left, a), (right, b)}) not in seen
    }
    # Any pair that no program shows must be impossible: check by asking for a valid combination around it.
    assert not [pair for pair in sorted(unseen) if _possible(pair)]


def _possible(pair: tuple[str, str, str, str]) -> bool:
    import random

    left, a, right, b = pair
    chooser = random.Random(0)
    drawn = ({name: chooser.choice(values) for name, values in FACTORS.items()} for _ in range(300))
    return any(valid(spec | {left: a, right: b}) for spec in drawn)


def test_a_run_is_repeatable_and_one_changed_bit_in_a_weight_is_found(pool: Pool, tmp_path: Path) -> None:
    program = next(p for p in programs() if _plain(p.spec) and re.search(MADE, p.source))
    before = run(pool, program, program.source, tmp_path, fsdp1=True)
    again = run(pool, program, program.source, tmp_path, fsdp1=True)
    assert judge(program, before, again).verdict is Verdict.EQUAL
    made = re.search(MADE, program.source)
    assert made is not None
    bit = "corner.copy_(torch.nextafter(corner, torch.tensor(9.0)))"
    nudge = f"{made[0]}{made[1]}corner = model.head.weight.data[0, 0]\n{made[1]}{bit}\n"
    changed = run(pool, program, program.source.replace(made[0], nudge), tmp_path, fsdp1=True)
    outcome = judge(program, before, changed)
    assert outcome.verdict is Verdict.DIFFERENT
    # Which weights still differ after the last step, this one or those that it reached, is the processor's rounding.
    assert re.search(r"weight [\w.]+: up to|loss", outcome.detail)


#: Where a program makes its model.
MADE = r"\n( +)model = \w+\(\)\n"


def _plain(spec: Spec) -> bool:
    exact = spec["clip"] == "none" and spec["precision"] == "none"
    return exact and spec["init"] == "eager" and spec["strategy"] != "NO_SHARD"
