"""Every kind of checkpoint to every format, bit for bit what was gathered in the run that saved it."""

from __future__ import annotations

import json
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from tests.checkpoints.convert.converting import converted
from tests.checkpoints.written import assert_same, expected

TWO = (
    "full_orig.pt",
    "full_flat.pt",
    "sharded_orig",
    "sharded_flat",
    "sharded_orig_dcp",
    "sharded_flat_dcp",
    "sharded_optim_orig",
    "sharded_optim_flat",
    "shard_grad_op_dcp",
    "no_shard_dcp",
    "mesh",
    "mesh_dcp",
    "fsdp2",
    "fsdp2_dcp",
    "accelerate/pytorch_model_fsdp_0",
    "accelerate/optimizer_0",
    "by_rank_dcp",
    "lightning",
    "ep0-ba2",
)
FOUR = ("full_orig.pt", "sharded_orig", "sharded_orig_dcp", "hybrid", "hybrid_dcp", "hybrid_mesh", "fsdp2_hybrid")
ALL = [("two_ranks", name) for name in TWO] + [("four_ranks", name) for name in FOUR]
OPTIMIZERS_ALONE = ("sharded_optim_orig", "sharded_optim_flat", "accelerate/optimizer_0")


@pytest.mark.parametrize(("fixture", "name"), ALL)
def test_to_a_full_file(fixture: str, name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root = request.getfixturevalue(fixture)
    converted(root / name, tmp_path / "all.pt", Target.FULL)
    for mmap in (False, True):
        assert_same(torch.load(tmp_path / "all.pt", weights_only=True, mmap=mmap), expected(root, name))


@pytest.mark.parametrize(("fixture", "name"), ALL)
def test_to_a_folder(fixture: str, name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root = request.getfixturevalue(fixture)
    converted(root / name, tmp_path / "new", Target.DCP)
    dcp_to_torch_save(tmp_path / "new", tmp_path / "read.pt")
    assert_same(torch.load(tmp_path / "read.pt", weights_only=True), expected(root, name))


@pytest.mark.parametrize(("fixture", "name"), [(root, name) for root, name in ALL if name not in OPTIMIZERS_ALONE])
def test_to_safetensors(fixture: str, name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root = request.getfixturevalue(fixture)
    done = converted(root / name, tmp_path / "new", Target.SAFETENSORS)
    wanted = {str(key[-1]): value for key, value in expected(root, name).items() if "model" in key[:-1]}
    held = load_file(tmp_path / "new" / "model.safetensors")
    left_out = {name for name in wanted if any(f"left out {name}:" in note for note in done.notes)}
    assert left_out <= {"head.weight"}
    assert held.keys() == wanted.keys() - left_out
    for key, value in held.items():
        assert value.dtype == wanted[key].dtype
        assert torch.equal(value, wanted[key].detach()), key


@pytest.mark.parametrize("first", list(Target))
def test_there_and_back(first: Target, two_ranks: Path, tmp_path: Path) -> None:
    """What each writer writes, the readers read: a second conversion gives what a direct one gives."""
    source = two_ranks / "fsdp2_dcp"
    converted(source, tmp_path / "first", first)
    converted(tmp_path / "first", tmp_path / "second.pt", Target.FULL)
    whole = expected(two_ranks, "fsdp2_dcp")
    if first is Target.SAFETENSORS:
        whole = {key[1:]: value for key, value in whole.items() if key[0] == "model"}
    assert_same(torch.load(tmp_path / "second.pt", weights_only=True), whole)


def test_shards_and_their_index(two_ranks: Path, tmp_path: Path) -> None:
    converted(two_ranks / "fsdp2_dcp", tmp_path / "new", Target.SAFETENSORS, shard_size=1000)
    index = json.loads((tmp_path / "new" / "model.safetensors.index.json").read_bytes())
    shards = sorted(path for path in (tmp_path / "new").glob("*.safetensors"))
    count = len(shards)
    assert [path.name for path in shards] == [f"model-{n:05}-of-{count:05}.safetensors" for n in range(1, count + 1)]
    sizes = [[value.nbytes for value in load_file(path).values()] for path in shards]
    assert all(sum(held) <= 1000 or len(held) == 1 for held in sizes)
    assert all(sum(held) + sum(after) > 1000 for held, after in pairwise(sizes))
    wanted = {str(key[-1]): value for key, value in expected(two_ranks, "fsdp2_dcp").items() if key[0] == "model"}
    assert index["metadata"]["total_size"] == sum(value.nbytes for value in wanted.values())
    held = {name: (path.name, value) for path in shards for name, value in load_file(path).items()}
    assert index["weight_map"] == {name: file for name, (file, _) in held.items()}
    assert all(torch.equal(value, wanted[name].detach()) for name, (_, value) in held.items())


def test_chunks_of_the_source_stay(four_ranks: Path, tmp_path: Path) -> None:
    """A folder can be loaded by as many ranks as before, each reading its own part alone."""
    converted(four_ranks / "sharded_orig", tmp_path / "new", Target.DCP)
    (found,) = open_all(tmp_path / "new")
    entry = found.entries["model", "blocks.0.up.weight"]
    assert [(chunk.offsets, chunk.sizes) for chunk in entry.chunks] == [  # type: ignore[union-attr]
        ((0, 0), (7, 6)),
        ((7, 0), (7, 6)),
        ((14, 0), (7, 6)),
        ((21, 0), (4, 6)),
    ]


def test_tied_tensors_stay_on_one_storage(two_ranks: Path, tmp_path: Path) -> None:
    converted(two_ranks / "fsdp2", tmp_path / "all.pt", Target.FULL)
    model = torch.load(tmp_path / "all.pt", weights_only=True)["model"]
    assert model["tok.weight"].data_ptr() == model["head.weight"].data_ptr()


def test_a_file_of_a_rank_stands_for_those_of_all(two_ranks: Path, tmp_path: Path) -> None:
    converted(two_ranks / "sharded_orig" / "rank_1.pt", tmp_path / "all.pt", Target.FULL)
    assert_same(torch.load(tmp_path / "all.pt", weights_only=True), expected(two_ranks, "sharded_orig"))


def test_an_optimizer_beside_rank_files_tells_shapes(two_ranks: Path, tmp_path: Path) -> None:
    """As accelerate lays out LOCAL_STATE_DICT: the model in files of ranks, the optimizer in a folder beside them."""
    out = tmp_path / "out"
    shutil.copytree(two_ranks / "accelerate" / "optimizer_0", out / "optimizer_0")
    for rank in range(2):
        shutil.copy(two_ranks / "local_orig" / f"rank_{rank}.pt", out / f"pytorch_model_fsdp_rank{rank}.bin")
    converted(out / "pytorch_model_fsdp_rank0.bin", tmp_path / "all.pt", Target.FULL)
    whole = {key[2:]: one for key, one in expected(two_ranks, "local_orig").items() if key[:2] == ("whole", "model")}
    assert_same(torch.load(tmp_path / "all.pt", weights_only=True), whole)
    shutil.rmtree(out / "optimizer_0")
    with pytest.raises(CannotConvert, match="template"):
        converted(out / "pytorch_model_fsdp_rank0.bin", tmp_path / "other.pt", Target.FULL)
