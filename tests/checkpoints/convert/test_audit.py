"""Defects put into the first reading, each of which the second one finds; nothing is written then."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file

from fsdp_migrate.checkpoints import audit
from fsdp_migrate.checkpoints.convert import convert as run
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import Bytes, TensorEntry, ValueEntry
from fsdp_migrate.checkpoints.read import (
    checkpoint_parts,
    pieces,
    safetensors,
    torch_save,
    torch_tensors,
)
from fsdp_migrate.checkpoints.read import (
    dcp as folders,
)
from tests.checkpoints.convert.converting import converted
from tests.fuzz import checkpoint_files

STATE = {"model": {"w": torch.arange(6.0).reshape(2, 3), "v": torch.arange(6.0, 12.0).reshape(3, 2).t()}, "epoch": 3}
Patch = Callable[[pytest.MonkeyPatch], None]


def _wrapped(patch: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Have ``owner.name`` give what ``change`` makes of it."""
    before = getattr(owner, name)
    patch.setattr(owner, name, lambda *arguments, **keywords: change(before(*arguments, **keywords)))


def _without_last(patch: pytest.MonkeyPatch) -> None:
    def change(file: torch_save.TorchFile) -> torch_save.TorchFile:
        return replace(file, entries=dict([*file.entries.items()][:-1]))

    _wrapped(patch, torch_save, "of", change)


def _with_one_more(patch: pytest.MonkeyPatch) -> None:
    def change(file: torch_save.TorchFile) -> torch_save.TorchFile:
        return replace(file, entries={**file.entries, ("model", "u"): file.entries["model", "w"]})

    _wrapped(patch, torch_save, "of", change)


def _other_value(patch: pytest.MonkeyPatch) -> None:
    def change(file: torch_save.TorchFile) -> torch_save.TorchFile:
        return replace(file, entries={**file.entries, ("epoch",): ValueEntry(4)})

    _wrapped(patch, torch_save, "of", change)


def _moved(change: Callable[[Bytes, tuple[int, ...]], Bytes]) -> Patch:
    def entry_of(entry: TensorEntry) -> TensorEntry:
        chunk = entry.chunks[0]
        assert isinstance(chunk.where, Bytes)
        return replace(entry, chunks=(replace(chunk, where=change(chunk.where, entry.shape)),))

    return lambda patch: _wrapped(patch, torch_tensors.Tensors, "_ordinary", entry_of)


def _swapped_storages(patch: pytest.MonkeyPatch) -> None:
    def change(archive: Any) -> Any:
        return replace(archive, storages={"0": archive.storages["1"], "1": archive.storages["0"]})

    _wrapped(patch, checkpoint_parts, "open_archive", change)


def _other_dtype(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(torch_tensors._STORAGES, "FloatStorage", "int32")


DEFECTS: dict[str, tuple[Patch, str]] = {
    "a dropped key": (_without_last, "epoch exists 0 times in one and 1 time in the other file"),
    "a key too many": (_with_one_more, "model.u exists 1 time in one and 0 times in the other file"),
    "another value": (_other_value, "epoch is 4 in one and 3 in the other"),
    "another dtype": (_other_dtype, "is int32 (2, 3) in one and float32 (2, 3) in the other"),
    "a wrong stride": (_moved(lambda where, shape: replace(where, strides=where.strides[::-1])), "the elements of"),
    "a wrong offset": (_moved(lambda where, shape: replace(where, offset=where.offset - 4)), "the elements of"),
    "swapped storages": (_swapped_storages, "the elements of model.w are not those of the source"),
    "another byte order": (_moved(lambda where, shape: replace(where, little_endian=False)), "the elements of"),
}


@pytest.mark.parametrize("defect", DEFECTS)
@pytest.mark.parametrize("to", [Target.FULL, Target.DCP])
def test_a_defect_of_the_first_reading_is_found(
    defect: str, to: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch, told = DEFECTS[defect]
    torch.save(STATE, tmp_path / "in.pt")
    patch(monkeypatch)
    with pytest.raises(CannotConvert) as error:
        converted(tmp_path / "in.pt", tmp_path / "new", to)
    assert told in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == ["in.pt"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_chunks_of_a_folder_that_changed_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dcp.save({"w": torch.arange(4.0), "v": torch.arange(4.0, 8.0)}, checkpoint_id=tmp_path / "in", no_dist=True)

    def change(metadata: folders.Metadata) -> folders.Metadata:
        w, v = metadata.entries["w",], metadata.entries["v",]
        return replace(metadata, entries={("w",): v, ("v",): w})

    _wrapped(monkeypatch, folders, "of", change)
    with pytest.raises(CannotConvert, match=r"the elements of . are not those of the source"):
        converted(tmp_path / "in", tmp_path / "new", Target.FULL)


def test_tensors_of_safetensors_that_changed_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file({"w": torch.arange(4.0), "v": torch.arange(4.0, 8.0)}, tmp_path / "model.safetensors")

    def change(entries: Any) -> Any:
        return dict(zip(entries, reversed(entries.values()), strict=True))

    _wrapped(monkeypatch, safetensors, "read", change)
    with pytest.raises(CannotConvert, match=r"the elements of . are not those of the source"):
        converted(tmp_path / "model.safetensors", tmp_path / "new", Target.FULL)


def test_parts_of_ranks_that_changed_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = torch.arange(8.0).reshape(4, 2)
    for rank in range(2):
        made = checkpoint_files._distributed(whole, (2,), (checkpoint_files.Shard(0),), rank)
        torch.save({"w": made}, tmp_path / f"rank_{rank}.pt")

    def change(place: pieces.Place) -> pieces.Place:
        return replace(place, offsets=(2 - place.offsets[0], 0))

    converted(tmp_path / "rank_0.pt", tmp_path / "good.pt", Target.FULL)
    assert torch.equal(torch.load(tmp_path / "good.pt")["w"], whole)
    _wrapped(monkeypatch, pieces, "of_dtensor", change)
    with pytest.raises(CannotConvert, match="the elements of w are not those of the source"):
        converted(tmp_path / "rank_0.pt", tmp_path / "new", Target.FULL)


def test_a_plan_that_forgets_a_tensor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(STATE, tmp_path / "in.pt")

    def change(state: Any) -> Any:
        return replace(state, entries={key: one for key, one in state.entries.items() if key != ("model", "w")})

    _wrapped(monkeypatch, run, "plan", change)
    with pytest.raises(CannotConvert, match=r"model\.w is neither written nor left out"):
        converted(tmp_path / "in.pt", tmp_path / "new", Target.FULL)


@pytest.mark.parametrize("seed", range(30))
def test_both_readings_agree_on_meshes(seed: int, tmp_path: Path) -> None:
    files, whole = checkpoint_files.of_ranks(random.Random(seed))
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    converted(tmp_path / min(files), tmp_path / "out.pt", Target.FULL)
    written = torch.load(tmp_path / "out.pt")
    assert written.keys() == whole.keys()
    for name, value in whole.items():
        assert torch.equal(written[name], value) if isinstance(value, torch.Tensor) else written[name] == value


def test_the_readings_share_no_code() -> None:
    """All but the comparison, which has to know both."""
    folder = Path(str(audit.__file__)).parent
    for path in folder.glob("*.py"):
        tree = ast.parse(path.read_bytes())
        modules = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        modules += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        own = [name for name in modules if name.startswith("fsdp_migrate") and ".audit" not in name]
        assert path.name == "auditor.py" or own == [], path
        assert not {"zipfile", "pickle", "safetensors"} & set(modules), path
