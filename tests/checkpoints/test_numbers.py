"""Numbers and names that a checkpoint says of itself: larger than anything is, or spelled as no program counts."""

from __future__ import annotations

import ast
import json
import os
import pickle
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed._shard.sharded_tensor import Shard, ShardedTensor
from torch.distributed._shard.sharding_spec import ShardMetadata
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.coverage import union
from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.checkpoints.judge import loading
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.cli import main
from tests.checkpoints.convert.converting import converted

W = torch.arange(6.0)


def _folder(path: Path, shape: Sequence[int], sizes: Sequence[int], file: str = "__0_0.distcp") -> Path:
    """A folder whose metadata says that a tensor has one chunk, in ``file``."""
    path.mkdir()
    start = torch.Size([0] * len(shape))
    entry = TensorStorageMetadata(
        TensorProperties(torch.float32), torch.Size(shape), [ChunkStorageMetadata(start, torch.Size(sizes))]
    )
    places = {MetadataIndex("w", start, 0): _StorageInfo(file, 0, 500)}
    (path / ".metadata").write_bytes(pickle.dumps(Metadata({"w": entry}, {"w": ("w",)}, places)))
    return path


def _refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What every command says of a checkpoint that none of them takes."""
    for form in ("text", "json"):
        assert main(["checkpoint", "inspect", "--format", form, str(path)]) == 1
    said = capsys.readouterr().out
    assert main(["check", str(path)]) == 1
    assert "internal error" not in capsys.readouterr().out
    for to in Target:
        assert main(["checkpoint", "convert", str(path), str(path.parent / "out"), "--to", to.value]) == 2
    return said


@pytest.mark.parametrize("name", ["__²_0.distcp", f"__{'9' * 200}_0.distcp", "__٣_0.distcp"])
def test_a_rank_of_other_digits_or_of_too_many(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"{name}: it is missing" in _refused(_folder(tmp_path / "step", [6], [6], name), capsys)
    (found,) = open_all(tmp_path / "step")
    assert found.world_size == 1


def test_a_file_whose_name_no_system_takes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = _refused(_folder(tmp_path / "step", [6], [6], "x" * 100_000), capsys)
    assert "it is missing" in said
    assert len(said) < 10_000


@pytest.mark.parametrize("sizes", [[1] * 300, [2**62] * 300])
def test_more_elements_than_can_be_counted(
    sizes: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = _refused(_folder(tmp_path / "step", [2**62] * 300, sizes), capsys)
    assert "a tensor of more elements than 64 bits can count" in said
    header = json.dumps({"w": {"dtype": "NEW", "shape": [2**62] * 300, "data_offsets": [0, 4]}}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    assert "64 bits" in _refused(tmp_path / "w.safetensors", capsys)


def test_more_dimensions_than_python_calls_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = _folder(tmp_path / "step", [1] * 3000, [1] * 3000)
    (path / "__0_0.distcp").write_bytes(bytes(500))
    for to in Target:
        assert main(["checkpoint", "convert", str(path), str(tmp_path / "out"), "--to", to.value]) == 2
    assert "3000 dimensions" in capsys.readouterr().err
    assert main(["checkpoint", "inspect", str(path)]) == 0


def test_cuts_along_few_of_many_dimensions_are_counted() -> None:
    boxes = [((0, 5),) * 700 + ((first, first + 2),) for first in (0, 1, 6)]
    assert union(boxes) == 5**700 * 5
    with pytest.raises(BadCheckpoint, match="split along 65 dimensions"):
        union([((0, 1),) * 65, ((1, 2),) * 65])


@pytest.mark.parametrize("name", ["model_rank_999999999999.pt", "model_world_size_99999999999_rank_0.pt"])
def test_a_name_that_says_of_billions_of_ranks(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"w": W}, tmp_path / name)
    torch.save({"w": W + 1}, tmp_path / name.replace("_9", "_8").replace("_0", "_1"))
    assert main(["checkpoint", "inspect", str(tmp_path)]) in (0, 1)
    assert main(["check", str(tmp_path)]) in (0, 1)
    assert "internal error" not in capsys.readouterr().out


class _Sharded:
    """Pickled as a ShardedTensor of two ranks whose process group had ``ranks``."""

    def __init__(self, ranks: object) -> None:
        self._ranks = ranks

    def __reduce__(self) -> tuple[Any, ...]:
        shard = Shard(W[:3].clone(), ShardMetadata([0], [3], "rank:0/cpu"))
        state = ([shard], {"size": torch.Size([6])}, {"global_rank": 0, "global_world_size": self._ranks})
        arguments = (torch._utils._rebuild_tensor_v2, ShardedTensor, (None, torch.float32), state)
        return torch._tensor._rebuild_from_type_v2, arguments


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        (2, "of 2 ranks, the files of 1 are missing"),
        (10**9, "ranks, the files of 1, 2, 3, 4, 5, 6, 7, 8, … are missing"),
        (10**5000, "its number of ranks has 16610 bits"),
        ("2", "3 of the 6 elements of w are missing"),
    ],
    ids=["two", "many", "too many", "text"],
)
def test_a_pickle_that_says_of_billions_of_ranks(
    ranks: object, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"w": _Sharded(ranks)}, tmp_path / "model_rank_0.pt")
    assert told in _refused(tmp_path, capsys)


def test_two_files_of_one_rank_are_two_checkpoints(tmp_path: Path) -> None:
    for number, name in enumerate(("m_rank_0", "m_rank_1", "m_rank_01")):
        torch.save({"w": W + number}, tmp_path / f"{name}.pt")
    shown = {file.name for found in open_all(tmp_path) for file in found.found.files}
    assert shown == {"m_rank_0.pt", "m_rank_1.pt", "m_rank_01.pt"}


@pytest.mark.parametrize(
    "names",
    [
        ("m_rank_0.pt", "m_rank_01.pt"),
        ("m_rank_00.pt", "m_rank_1.pt", "m_rank_02.pt"),
        ('"+x_rank_0.pt', '"+x_rank_01.pt'),
    ],
)
def test_the_line_names_files_of_several_widths(names: tuple[str, ...], tmp_path: Path) -> None:
    for name in names:
        torch.save({"w": W}, tmp_path / name)
    (found,) = open_all(tmp_path)
    (argument,) = (
        node.args[0]
        for node in ast.walk(ast.parse(loading.line(found)))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load"
    )
    for rank, name in enumerate(names):

        class _Dist:
            get_rank = staticmethod(lambda rank=rank: rank)

        assert eval(compile(ast.Expression(argument), "line", "eval"), {"dist": _Dist}) == str(tmp_path / name)


def test_an_index_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 0
    assert "neither a model nor an optimizer" in capsys.readouterr().out
    with pytest.raises(CannotConvert):
        converted(tmp_path, tmp_path / "out", Target.FULL)


@pytest.mark.parametrize("name", ["x.safetensors", "x.safetensors.index.json", ".metadata", "x.distcp"])
def test_a_target_that_its_reader_would_take_for_something_else(name: str, tmp_path: Path) -> None:
    (tmp_path / "new").mkdir()
    torch.save({"w": W}, tmp_path / "in.pt")
    with pytest.raises(CannotConvert, match="file with this name would not be read"):
        converted(tmp_path / "in.pt", tmp_path / "new" / name, Target.FULL)
    assert os.listdir(tmp_path / "new") == []  # noqa: PTH208


@pytest.mark.parametrize("second", [0, 4])
def test_parts_of_an_unknown_dtype(second: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody can join or compare them, so that they are named and refused."""
    for number, start in enumerate((0, second)):
        info = json.dumps({"w": {"saved_offsets": [start]}})
        told = {"__metadata__": {"DCP_SHARDING_INFO": info}, "w": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]}}
        header = json.dumps(told).encode()
        name = f"shard-0000{number + 1}-model-00001-of-00001.safetensors"
        (tmp_path / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes([number, 1]))
    assert main(["checkpoint", "inspect", str(tmp_path)]) == 0
    for to in Target:
        assert main(["checkpoint", "convert", str(tmp_path), str(tmp_path.parent / "out"), "--to", to.value]) == 2
        assert "w is F4, whose size this version does not know" in capsys.readouterr().err
