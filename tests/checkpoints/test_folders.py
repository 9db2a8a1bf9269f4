"""Which files belong together, and whose layout it is, told by names and by what is in the files."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fixtures.checkpoints import hostile
from fsdp_migrate.checkpoints.judge.judge import findings
from fsdp_migrate.checkpoints.judge.loading import line
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.checkpoints.read.find import Kind, find


@pytest.mark.parametrize(
    ("pattern", "layout"),
    [
        ("rank_{}.pt", ""),
        ("rank{}.pt", ""),
        ("model_final.rank_{}.pth", ""),
        ("pytorch_model_fsdp_rank{}.bin", "accelerate"),
        ("model_world_size_2_rank_{}.pt", "verl"),
        ("ep0-ba2-rank{}.pt", "Composer"),
        ("shard_{}.pt", ""),
        ("consolidated.0{}.pth", ""),
    ],
)
def test_files_of_ranks(pattern: str, layout: str, two_ranks: Path, tmp_path: Path) -> None:
    for rank in range(2):
        shutil.copy(two_ranks / "sharded_orig" / f"rank_{rank}.pt", tmp_path / pattern.format(rank))
    (found,) = find(tmp_path)
    assert found.kind is Kind.RANKS
    assert found.layout == layout
    assert found.ranks == {rank: tmp_path / pattern.format(rank) for rank in range(2)}
    assert [finding.rule for finding in findings(tmp_path)] == ["FSDP401"]


def test_numbered_files_of_steps_are_not_ranks(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    for number in (0, 1):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / f"epoch_{number}.pt")
    assert [found.kind for found in find(tmp_path)] == [Kind.FILE, Kind.FILE]
    assert [finding.rule for finding in findings(tmp_path)] == ["FSDP403", "FSDP403"]


def test_two_families_in_one_folder(two_ranks: Path, tmp_path: Path) -> None:
    for rank in range(2):
        shutil.copy(two_ranks / "local_orig" / f"rank_{rank}.pt", tmp_path / f"model_rank_{rank}.pt")
        shutil.copy(two_ranks / "sharded_optim_orig" / f"rank{rank}.pt", tmp_path / f"optim_rank_{rank}.pt")
    assert [len(found.ranks) for found in find(tmp_path)] == [2, 2]
    assert [finding.rule for finding in findings(tmp_path)] == ["FSDP402", "FSDP401"]


def test_what_lies_beside_checkpoints_is_not_one(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "tokens.bin").write_bytes(b"\x00\x01" * 100)
    (tmp_path / "source.tar").write_bytes(b"source" * 100)
    (tmp_path / ".cache").mkdir()
    torch.save({}, tmp_path / ".cache" / "model.pt")
    assert find(tmp_path) == []


def test_states_of_random_generators_are_no_model(tmp_path: Path) -> None:
    for rank in range(2):
        torch.save({"cpu": torch.get_rng_state(), "python": (3, (1, 2), None)}, tmp_path / f"rng_state_{rank}.pth")
    told = [(found.found.kind, line(found)) for found in open_all(tmp_path)]
    assert [kind for kind, _ in told] == [Kind.FILE, Kind.FILE]
    assert all("neither a model nor an optimizer" in text for _, text in told)
    assert findings(tmp_path) == []


def test_safetensors_alone_in_shards_and_with_an_index(tmp_path: Path) -> None:
    save_file({"a": torch.arange(6.0).view(2, 3)}, tmp_path / "adapter.safetensors")
    for number in (1, 2):
        save_file({f"w{number}": torch.ones(2)}, tmp_path / f"model-0000{number}-of-00002.safetensors")
    names = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"w1": "%s", "w2": "%s"}}' % names)  # noqa: UP031
    shards, adapter = open_all(tmp_path)
    assert shards.path == index
    assert list(shards.entries) == [("w1",), ("w2",)]
    assert list(adapter.entries) == [("a",)]
    assert [found.path for found in find(index)] == [index]
    index.unlink()
    assert sorted(list(found.entries) for found in open_all(tmp_path)) == [[("a",)], [("w1",), ("w2",)]]
    assert findings(tmp_path) == []


def test_metadata_stands_for_its_folder(two_ranks: Path) -> None:
    assert find(two_ranks / "fsdp2_dcp" / ".metadata") == find(two_ranks / "fsdp2_dcp")


def test_what_lightning_keeps_beside_a_folder_is_looked_into(two_ranks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_ranks / "lightning", tmp_path / "lightning")
    hostile.archive(hostile.by_system(tmp_path / "sentinel"), folder / "meta.pt")
    assert [finding.rule for finding in findings(folder)] == ["FSDP406", "FSDP404"]
    assert not (tmp_path / "sentinel").exists()


def test_the_code_that_loads_follows_the_nesting(two_ranks: Path) -> None:
    (found,) = open_all(two_ranks / "ep0-ba2")
    assert line(found) == (
        'sd = {"state": {"model": get_model_state_dict(model), "optimizers": {"AdamW": '
        "get_optimizer_state_dict(model, optimizer)}}}; "
        f'dcp.load(sd, checkpoint_id="{two_ranks / "ep0-ba2"}"); set_model_state_dict(model, sd["state"]["model"]); '
        'set_optimizer_state_dict(model, optimizer, sd["state"]["optimizers"]["AdamW"])'
    )
