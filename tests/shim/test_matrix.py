"""The shim against real FSDP1, bit for bit, wherever two settings may meet: each pair of values stands in some case.

FSDP1 and FSDP2 lay out their buffers in different ways, and gloo's sums over more than two processes depend on the
place in the buffer, so that from three processes on two right answers differ in the last bit. Sums are therefore made
in the order of the ranks on both sides (:mod:`tests.parity.ordered`); the numbers still travel over gloo.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from torch.distributed.device_mesh import init_device_mesh

from tests.device import KIND
from tests.parity.ordered import sums_in_rank_order
from tests.parity.specs import Spec, pairs, specs
from tests.pool import Pool
from tests.shim.training import POLICIES, Case, assert_same, train_compat, train_fsdp1

FACTORS: dict[str, tuple[str, ...]] = {
    "ranks": ("2", "3", "4"),
    "strategy": ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"),
    "policy": tuple(POLICIES),
    "accumulate": ("1", "deferred", "no_sync"),
    "clip": ("none", "inactive"),
    "init": ("eager", "meta"),
    "weights": ("untied", "tied"),
    "shapes": ("uneven", "even"),
    "orig_params": ("True", "False"),
}
_SPLITS_TIES = ("size", "always", "module")

#: What has no answer to compare with, and why.
EXCLUDED: dict[str, Callable[[Spec], bool]] = {
    "a hybrid mesh needs two dimensions": lambda s: "HYBRID" in s["strategy"] and s["ranks"] != "4",
    "tied weights in two units: FSDP1 fails in the forward pass": lambda s: (
        s["weights"] == "tied" and s["policy"] in _SPLITS_TIES
    ),
    "a flat parameter of one element: FSDP1 takes its reduced gradient for one that waits, and reduces it again": (
        lambda s: s["policy"] == "always" and s["accumulate"] == "deferred" and s["orig_params"] == "False"
    ),
    "a strategy of its own for some units goes with one mesh": lambda s: (
        s["policy"] == "custom" and "HYBRID" in s["strategy"]
    ),
}


def allowed(spec: Spec) -> bool:
    return not any(excludes(spec) for excludes in EXCLUDED.values())


_SPECS = tuple(specs(FACTORS, allowed))


def chosen(ranks: int, strategy: str) -> list[Spec]:
    return [spec for spec in _SPECS if (spec["ranks"], spec["strategy"]) == (str(ranks), strategy)]


def case_of(spec: Spec) -> Case:
    arguments: dict[str, Any] = {}
    if "HYBRID" in spec["strategy"]:
        arguments["device_mesh"] = init_device_mesh(KIND, (2, 2), mesh_dim_names=("replicate", "shard"))
    return Case(
        policy=spec["policy"],
        strategy=spec["strategy"],
        tied=spec["weights"] == "tied",
        accumulate=1 if spec["accumulate"] == "1" else 3,
        silent=spec["accumulate"] == "no_sync",
        max_norm=1000.0 if spec["clip"] == "inactive" else None,
        use_orig_params=spec["orig_params"] == "True",
        steps=2,
        even=spec["shapes"] == "even",
        meta=spec["init"] == "meta",
        arguments=arguments,
    )


def differences(rank: int, world_size: int, wanted: list[Spec]) -> list[str]:
    """Worker: which of ``wanted`` do not train the same, each with what differs first."""
    found = []
    with sums_in_rank_order():
        for spec in wanted:
            case = case_of(spec)
            theirs, ours = train_fsdp1(rank, case), train_compat(rank, case)
            try:
                assert_same(theirs, ours)
            except AssertionError as error:
                found.append(f"{dict(spec)}: {error}")
    return found


@pytest.mark.parametrize(
    ("ranks", "strategy"),
    [(ranks, strategy) for ranks in (2, 3, 4) for strategy in FACTORS["strategy"] if chosen(ranks, strategy)],
)
def test_trains_as_fsdp1_whatever_meets(pool: Pool, ranks: int, strategy: str) -> None:
    assert pool.run(differences, ranks, chosen(ranks, strategy)) == [[]] * ranks


def test_each_pair_of_values_is_there() -> None:
    """Whatever two values may meet do meet, and nothing but what is excluded by name is missing."""
    shown = {pair for spec in _SPECS for pair in pairs(spec)}
    for (left, a), (right, b) in itertools.combinations(
        ((name, value) for name, values in FACTORS.items() for value in values), 2
    ):
        if left != right and frozenset({(left, a), (right, b)}) not in shown:
            others = {name: values for name, values in FACTORS.items() if name not in (left, right)}
            completions = (
                {left: a, right: b, **dict(zip(others, values, strict=True))}
                for values in itertools.product(*others.values())
            )
            assert not any(map(allowed, completions)), f"{left}={a} never meets {right}={b}"
