"""Every kind of checkpoint that FSDP1 and FSDP2 write: what is said of it, and that its elements are those saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fsdp_migrate.checkpoints.entries import TensorEntry, ValueEntry, tensors
from fsdp_migrate.checkpoints.judge.judge import judge
from fsdp_migrate.checkpoints.read.checkpoint_parts import Checkpoint, open_all
from tests.checkpoints.written import elements, expected

#: What each checkpoint of two ranks is (kind and layout), and the rules that concern it: no more and no fewer.
TWO = {
    "full_orig.pt": ("file", "", []),
    "full_flat.pt": ("file", "", ["FSDP408"]),
    "sharded_orig": ("ranks", "", ["FSDP401"]),
    "sharded_flat": ("ranks", "", ["FSDP401"]),
    "sharded_orig_dcp": ("dcp", "", ["FSDP404"]),
    "sharded_flat_dcp": ("dcp", "", ["FSDP404"]),
    "sharded_optim_orig": ("ranks", "", ["FSDP401"]),
    "sharded_optim_flat": ("ranks", "", ["FSDP401"]),
    "local_orig": ("ranks", "", ["FSDP402"]),
    "local_flat": ("ranks", "", ["FSDP402"]),
    "local_orig_dcp": ("dcp", "", ["FSDP402"]),
    "local_flat_dcp": ("dcp", "", ["FSDP402"]),
    "raw_orig": ("ranks", "", ["FSDP403"]),
    "raw_flat": ("ranks", "", ["FSDP403"]),
    "shard_grad_op_dcp": ("dcp", "", ["FSDP404"]),
    "no_shard_dcp": ("dcp", "", []),
    "mesh": ("ranks", "", []),
    "mesh_dcp": ("dcp", "", []),
    "fsdp2": ("ranks", "verl", []),
    "fsdp2_dcp": ("dcp", "", []),
    "fsdp2_raw_optimizer_dcp": ("dcp", "", ["FSDP403"]),
    "accelerate/pytorch_model_fsdp_0": ("dcp", "accelerate", ["FSDP404"]),
    "accelerate/optimizer_0": ("dcp", "accelerate", ["FSDP404"]),
    "accelerate/pytorch_model_fsdp.bin": ("file", "accelerate", []),
    "trainer/pytorch_model_fsdp_0": ("dcp", "HF Trainer", ["FSDP404"]),
    "trainer/optimizer_0": ("dcp", "HF Trainer", ["FSDP404"]),
    "by_rank_dcp": ("dcp", "", ["FSDP404"]),
    "lightning": ("dcp", "Lightning", ["FSDP404"]),
    "ep0-ba2": ("dcp", "Composer", ["FSDP404"]),
}
FOUR = {
    "full_orig.pt": ("file", "", []),
    "sharded_orig": ("ranks", "", ["FSDP401"]),
    "sharded_orig_dcp": ("dcp", "", ["FSDP404"]),
    "sharded_optim_orig": ("ranks", "", ["FSDP401"]),
    "local_orig": ("ranks", "", ["FSDP402"]),
    "local_orig_dcp": ("dcp", "", ["FSDP402"]),
    "raw_orig": ("ranks", "", ["FSDP403"]),
    "hybrid": ("ranks", "", ["FSDP401"]),
    "hybrid_dcp": ("dcp", "", ["FSDP404"]),
    "hybrid_mesh": ("ranks", "", []),
    "hybrid_mesh_dcp": ("dcp", "", []),
    "fsdp2_hybrid": ("ranks", "verl", []),
    "fsdp2_hybrid_dcp": ("dcp", "", []),
    "fsdp2_hybrid_raw_optimizer_dcp": ("dcp", "", ["FSDP403"]),
}
#: Those whose tensors are what the run gathered, key by key.
WHOLE = (
    "full",
    "sharded",
    "mesh",
    "hybrid",
    "fsdp2",
    "shard_grad",
    "no_shard",
    "trainer",
    "lightning",
    "ep0",
    "by_rank",
)


def _named(root: Path, found: Checkpoint) -> str:
    path = found.path.parent if found.found.kind.value == "ranks" else found.path
    return path.relative_to(root).as_posix()


@pytest.mark.parametrize(("fixture", "table"), [("two_ranks", TWO), ("four_ranks", FOUR)])
def test_what_is_said_of_each(fixture: str, table: dict[str, object], request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(fixture)
    told = {
        _named(root, found): (found.found.kind.value, found.found.layout, [finding.rule for finding in judge(found)])
        for found in open_all(root)
    }
    assert told == table


@pytest.mark.parametrize(("fixture", "ranks"), [("two_ranks", 2), ("four_ranks", 4)])
def test_the_number_of_ranks(fixture: str, ranks: int, request: pytest.FixtureRequest) -> None:
    for found in open_all(request.getfixturevalue(fixture)):
        assert found.problems == (), found.path
        if found.found.kind.value == "ranks":
            assert found.world_size == ranks
            assert sorted(found.ranks) == list(range(ranks))


@pytest.mark.parametrize(
    ("fixture", "name"),
    [("two_ranks", name) for name in TWO if name.startswith(WHOLE)]
    + [("four_ranks", name) for name in FOUR if name.startswith(WHOLE)],
)
def test_elements_are_those_of_the_run_that_saved_them(fixture: str, name: str, request: pytest.FixtureRequest) -> None:
    root = request.getfixturevalue(fixture)
    (found,) = open_all(root / name)
    wanted = expected(root, name)
    held = {key: entry for key, entry in found.entries.items() if not _is_empty_state(entry)}
    assert {tuple(map(str, key)) for key in held} == {tuple(map(str, key)) for key in wanted}
    by_name = {tuple(map(str, key)): value for key, value in wanted.items()}
    for key, entry in held.items():
        value = by_name[tuple(map(str, key))]
        if isinstance(entry, TensorEntry):
            assert torch.equal(elements(entry), value.detach()), key
            assert elements(entry).dtype == value.dtype
        else:
            assert entry.value == value, key


def _is_empty_state(entry: object) -> bool:
    return isinstance(entry, ValueEntry) and entry.value in ({}, []) and not isinstance(entry.value, str)


@pytest.mark.parametrize("name", ["local_orig", "local_flat", "local_orig_dcp", "local_flat_dcp"])
def test_flat_parameters_are_whole(name: str, two_ranks: Path) -> None:
    (found,) = open_all(two_ranks / name)
    wanted = {key: value for key, value in expected(two_ranks, name).items() if key[0] != "whole"}
    held = dict(tensors(found.entries))
    assert len(wanted) == 3
    for key, value in wanted.items():
        assert torch.equal(elements(held[key]), value), key


def test_replicas_are_taken_once(four_ranks: Path) -> None:
    (found,) = open_all(four_ranks / "hybrid")
    for _, entry in tensors(found.entries):
        boxes = [(chunk.offsets, chunk.sizes) for chunk in entry.chunks]
        assert len(boxes) == len(set(boxes)) <= 2
        assert sum(chunk.numel for chunk in entry.chunks) == entry.numel


def test_ties_are_told_where_the_storage_is_one(two_ranks: Path) -> None:
    (found,) = open_all(two_ranks / "fsdp2")
    assert found.ties == ((("model", "tok.weight"), ("model", "head.weight")),)


def test_what_differs_from_rank_to_rank_is_told(two_ranks: Path) -> None:
    (found,) = open_all(two_ranks / "local_orig")
    assert {key[0] for key in found.rankwise} >= {"tok.weight", "blocks.0.up.weight", "gain"}
    assert not {key[0] for key in found.rankwise} & {"count", "mean", "blocks.0.calls"}


def test_a_full_file_of_fsdp1_is_known_by_its_mark(two_ranks: Path) -> None:
    (found,) = open_all(two_ranks / "full_orig.pt")
    assert found.ranks[0].fsdp1
    (other,) = open_all(two_ranks / "fsdp2_dcp")
    assert not other.ranks
