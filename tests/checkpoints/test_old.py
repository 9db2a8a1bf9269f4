"""What older versions of torch wrote: no false alarms, and a range of versions that holds the right one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fixtures.checkpoints import old
from fsdp_migrate.checkpoints.judge.dating import torch_versions
from fsdp_migrate.checkpoints.judge.judge import findings
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.checkpoints.read.unpickle import Global


@pytest.mark.parametrize(
    ("name", "rules"), [("fsdp2_dcp", []), ("no_shard_dcp", []), ("sharded_orig_dcp", ["FSDP404"])]
)
def test_the_properties_of_torch_2_2_are_no_sharded_tensor(
    name: str, rules: list[str], two_ranks: Path, tmp_path: Path
) -> None:
    """Its ``.metadata`` names a class from ShardedTensor's module for every tensor; it says nothing about FSDP1."""
    folder = shutil.copytree(two_ranks / name, tmp_path / name)
    old.as_torch_2_2(folder)
    (found,) = open_all(folder)
    assert found.metadata is not None
    assert Global("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties") in found.metadata.names
    assert [finding.rule for finding in findings(folder)] == rules
    assert str(torch_versions(found)) == "torch 2.2 or earlier"
    (today,) = open_all(two_ranks / name)
    assert found.entries.keys() == today.entries.keys()


def test_keys_without_nesting_are_one_name(two_ranks: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(two_ranks / "fsdp2_raw_optimizer_dcp", tmp_path / "step")
    old.without_nesting(folder)
    (found,) = open_all(folder)
    assert ("model.tok.weight",) in found.entries
    assert [finding.rule for finding in findings(folder)] == ["FSDP403"]


def test_todays_files_are_dated(two_ranks: Path) -> None:
    for name in ("sharded_orig_dcp", "fsdp2_dcp", "full_orig.pt", "sharded_orig", "fsdp2"):
        (found,) = open_all(two_ranks / name)
        versions = torch_versions(found)
        assert versions.oldest in {"2.7", "2.9"}, name
        assert versions.newest is None, name
