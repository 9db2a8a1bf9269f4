"""The preflight finds what is wrong with a model before its first step, and nothing in a healthy one."""

from __future__ import annotations

import json

import pytest

from tests.pool import Pool
from tests.shim import preflight_layouts, preflight_more
from tests.shim.gates import needs_torch
from tests.shim.preflight_more import NEEDS

Found = dict[str, tuple[dict[str, str], str, str, bool]]
#: What a model with one thing wrong rightly has besides.
BESIDES = {"replicas_apart": {"mesh-of-one"}, "stale_optimizer": {"save-and-load"}}


@pytest.fixture(scope="module")
def found(pool: Pool) -> list[Found]:
    return pool.run(preflight_more.run, 2)


@pytest.mark.parametrize(
    ("name", "check"),
    [
        pytest.param(build.__name__, check, marks=[needs_torch(*needs)] if (needs := NEEDS.get(build)) else [])
        for build, check in preflight_more.ALL.items()
    ],
)
def test_each_defect_is_found_and_nothing_else(found: list[Found], name: str, check: str | None) -> None:
    messages = found[0][name][0]
    assert set(messages) - BESIDES.get(name, set()) == ({check} if check is not None else set()), messages
    assert found[1][name][0] == messages, "every rank gets what any rank found"
    assert found[0][name][3], "the state of the optimizer is as it was"


def test_a_mesh_over_some_of_the_ranks(pool: Pool) -> None:
    found = pool.run(preflight_more.run, 4)[3]
    assert {name: set(messages) for name, (messages, *_) in found.items()} == {
        build.__name__: {check} if check else set() for build, check in preflight_more.FOUR.items()
    }


def test_a_class_is_named_exactly_where_fully_shard_cannot_replace_it(pool: Pool) -> None:
    found = pool.run(preflight_layouts.layouts, 2)[0]
    fails = {"AbstractFirst", "Derived", "GenericFirst", "SlotsFirst"}
    assert found == {cls.__name__: (cls.__name__ in fails,) * 2 for cls in preflight_layouts.LAYOUTS}


def test_a_number_to_reshard_to_makes_groups_for_each_unit(pool: Pool) -> None:
    with_true, with_two = pool.run(preflight_layouts.groups_made, 4)[0]
    assert with_two >= with_true + 5


@needs_torch("2.12", "the error; older versions of torch silently untie the weights")
def test_torch_refuses_tied_weights_in_two_units_by_itself(pool: Pool) -> None:
    assert "shared with a parameter already managed by another" in pool.run(preflight_more.refused, 2)[0]


def test_the_report(found: list[Found]) -> None:
    messages, text, as_json, _ = found[0]["root_only"]
    assert messages == {"few-units": "(root): only the root is sharded: it is gathered as a whole"}
    assert text.splitlines()[-1] == "1 units, 1 suspicious on 2 ranks"
    answer = json.loads(as_json)
    assert (answer["world"], answer["units"][0]["kind"], answer["units"][0]["shards"]) == (2, "FSDP2", 2)
    assert [unit["name"] for unit in json.loads(found[0]["healthy"][2])["units"]][:2] == ["", "layers.0"]
    assert {unit["kind"] for unit in json.loads(found[0]["healthy_fsdp1"][2])["units"]} == {"FSDP1"}
