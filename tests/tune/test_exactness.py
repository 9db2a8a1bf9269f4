"""What the schedule says of collectives, their bytes and the most gathered bytes is what runs count."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from fsdp_migrate.tune.accounts import Accounts
from fsdp_migrate.tune.present import with_passing
from fsdp_migrate.tune.replay import replay
from fsdp_migrate.tune.sharding_layout import InvalidLayout, Layout, Unit
from fsdp_migrate.tune.traced_model import TracedModel
from tests.pool import Pool
from tests.sampling import tiers
from tests.tune.layouts import KINDS, layouts
from tests.tune.models import MODELS, counted, recorded

CASES = [
    (name, kind, ranks)
    for ranks in ("2", "3", "4")
    for name in MODELS
    for kind in KINDS
    if ranks == "4" or kind not in ("hybrid", "kept over two")
]


@cache
def trace(name: str) -> TracedModel:
    return recorded(name)


def said(books: Accounts) -> tuple[object, ...]:
    return dict(books.counts), dict(books.moved), books.peaks["gathered"], books.peaks["communicated"]


@pytest.mark.parametrize("case", tiers(CASES, 13, 6), ids=" ".join)
def test_a_run_counts_what_the_schedule_says(pool: Pool, case: tuple[str, str, str]) -> None:
    name, kind, ranks = case[0], case[1], int(case[2])
    model = trace(name)
    layout = layouts(model, ranks).get(kind)
    assert layout is not None
    expected = said(replay(model, layout))
    for found in pool.run(counted, ranks, name, model, layout):
        assert (dict(found["counts"]), dict(found["moved"]), found["gathered"], found["both"]) == expected


def test_what_operators_need_while_they_run_is_what_no_layout_explains() -> None:
    plain = trace("language")
    root = Layout("", (Unit((0,)),), 2)
    marks = replay(plain, root).marks
    busy = plain.by_name["blocks.1.up"]
    events = [
        replace(event, peak=mark + (5000 if event.kind == "exit" and event.subject == busy else 0))
        for event, mark in zip(plain.events, marks, strict=True)
    ]
    found = replace(plain, events=tuple(with_passing(replace(plain, events=tuple(events)), root)))
    assert {event.passing for event in found.events if event.subject == busy and event.kind == "exit"} == {5000}
    assert sum(event.passing for event in found.events) == 5000
    # It comes on top of what another layout holds at that time.
    blocks = layouts(plain, 2)["blocks"]
    assert replay(found, blocks).at_peak["passing"] == 5000
    assert (
        replay(plain, blocks).peaks["all"]
        < replay(found, blocks).peaks["all"]
        < replay(plain, blocks).peaks["all"] + 5000
    )


def test_what_fully_shard_refuses_is_refused() -> None:
    tied, plain = trace("tied"), trace("language")
    root = Unit((0,))
    with pytest.raises(InvalidLayout, match=r"embedding\.weight is shared by two units"):
        replay(tied, Layout("", (Unit((tied.by_name["head"],)), root), 2))
    with pytest.raises(InvalidLayout, match="the last unit must be only the root"):
        replay(plain, Layout("", (Unit((1,)),), 2))
    with pytest.raises(InvalidLayout, match="not a factor of 4"):
        replay(plain, Layout("", (Unit((plain.by_name["head"],), 3), root), 4))
