"""Checkpoints of which something is missing or wrong: told as FSDP405, with what and where, and never a traceback."""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fsdp_migrate.checkpoints.judge.judge import findings
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.cli import main


@pytest.fixture
def copy(two_ranks: Path, four_ranks: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a checkpoint of two ranks, or of ``four/...`` of four, to be broken."""

    def make(name: str) -> Path:
        source = four_ranks / name.removeprefix("four/") if name.startswith("four/") else two_ranks / name
        target = tmp_path / source.name
        if source.is_dir():
            return Path(shutil.copytree(source, target))
        return Path(shutil.copy(source, target))

    return make


def _only_problem(path: Path) -> str:
    (found,) = open_all(path)
    assert "FSDP405" in [finding.rule for finding in findings(path)]
    return found.problems[0]


def test_a_missing_rank_file(copy: Callable[[str], Path]) -> None:
    path = copy("sharded_orig")
    (path / "rank_1.pt").unlink()
    (found,) = open_all(path)
    assert found.problems[0].endswith("rank_0.pt: of 2 ranks, the files of 1 are missing")
    assert "elements of model." in found.problems[1]
    assert [finding.rule for finding in findings(path)] == ["FSDP405", "FSDP401"]


def test_the_first_rank_file_missing(copy: Callable[[str], Path]) -> None:
    path = copy("four/sharded_orig")
    (path / "rank_0.pt").unlink()
    (path / "rank_2.pt").unlink()
    assert _only_problem(path).endswith("rank_1.pt: of 4 ranks, the files of 0, 2 are missing")


def test_a_single_file_of_many_ranks(copy: Callable[[str], Path]) -> None:
    """Named alone, a rank's file is one of a whole that is elsewhere."""
    path = copy("sharded_orig") / "rank_0.pt"
    assert "FSDP405" in [finding.rule for finding in findings(path)]


def test_the_missing_slices_of_a_raw_optimizer(copy: Callable[[str], Path]) -> None:
    path = copy("four/raw_orig")
    (path / "optim_2.pt").unlink()
    assert _only_problem(path).endswith("optim_0.pt: of 4 ranks, the files of 2 are missing")


def test_a_missing_replica_leaves_it_whole(copy: Callable[[str], Path]) -> None:
    path = copy("four/hybrid")
    (path / "rank_3.pt").unlink()
    assert [finding.rule for finding in findings(path)] == ["FSDP401"]
    (path / "rank_1.pt").unlink()
    assert [finding.rule for finding in findings(path)] == ["FSDP405", "FSDP401"]


def test_a_missing_file_of_a_folder(copy: Callable[[str], Path]) -> None:
    path = copy("sharded_orig_dcp")
    (path / "__1_0.distcp").unlink()
    assert _only_problem(path) == f"{path / '__1_0.distcp'}: it is missing"


def test_a_folder_without_metadata(copy: Callable[[str], Path]) -> None:
    path = copy("sharded_orig_dcp")
    (path / ".metadata").unlink()
    assert _only_problem(path) == f"{path}: .metadata is missing, and the folder cannot be read without it"


def test_chunks_that_metadata_does_not_place(copy: Callable[[str], Path]) -> None:
    path = copy("sharded_orig_dcp")
    metadata = pickle.loads((path / ".metadata").read_bytes())
    gone = next(index for index in metadata.storage_data if index.fqn == "model.tok.weight")
    del metadata.storage_data[gone]
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    (found,) = open_all(path)
    assert found.problems[0].endswith("the offset of model.tok.weight is missing")
    assert "of the 102 elements of model.tok.weight are missing" in found.problems[1]


def test_chunks_that_metadata_does_not_list(copy: Callable[[str], Path]) -> None:
    path = copy("sharded_orig_dcp")
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.state_dict_metadata["model.tok.weight"].chunks.pop()
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "of the 102 elements of model.tok.weight are missing" in _only_problem(path)


def test_a_chunk_beyond_its_tensor(copy: Callable[[str], Path]) -> None:
    path = copy("sharded_orig_dcp")
    metadata = pickle.loads((path / ".metadata").read_bytes())
    metadata.state_dict_metadata["model.tok.weight"].chunks[1].offsets = torch.Size([16, 0])
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert "model.tok.weight has a chunk that extends beyond its shape (17, 6)" in _only_problem(path)


@pytest.mark.parametrize("change", [{"offset": -1}, {"length": -5}, {"offset": 2**40}, {"offset": "0"}])
def test_items_in_impossible_places(change: dict[str, object], copy: Callable[[str], Path]) -> None:
    path = copy("sharded_orig_dcp")
    metadata = pickle.loads((path / ".metadata").read_bytes())
    for name, value in change.items():
        for info in metadata.storage_data.values():
            setattr(info, name, value)
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    assert _only_problem(path)


def _sections(path: Path) -> list[int]:
    """Where each record of an archive starts and where its data does, and the directory and its end."""
    with zipfile.ZipFile(path) as archive:
        starts = [info.header_offset for info in archive.infolist()]
        directory = archive.start_dir
    size = path.stat().st_size
    places = {*starts, *(start + 30 for start in starts), directory, directory + 20, size - 22, size - 4, size - 1, 3}
    return sorted(place for place in places if 0 <= place < size)


def test_a_file_cut_at_every_section(copy: Callable[[str], Path]) -> None:
    path = copy("full_orig.pt")
    whole = path.read_bytes()
    for place in _sections(path):
        path.write_bytes(whole[:place])
        assert [finding.rule for finding in findings(path.parent)] == ["FSDP405"], place


def test_an_old_file_cut_anywhere(tmp_path: Path) -> None:
    path = tmp_path / "old.pt"
    torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    whole = path.read_bytes()
    assert findings(path) == []
    storages = whole.rindex(b".") + 1
    for place in range(0, storages, 7):
        path.write_bytes(whole[:place])
        assert [finding.rule for finding in findings(path)] == ["FSDP405"], place


def test_metadata_cut_anywhere(copy: Callable[[str], Path]) -> None:
    path = copy("sharded_orig_dcp")
    whole = (path / ".metadata").read_bytes()
    for place in range(0, len(whole), 97):
        (path / ".metadata").write_bytes(whole[:place])
        assert [finding.rule for finding in findings(path)] == ["FSDP405"], place


def test_a_folder_whose_data_is_cut(copy: Callable[[str], Path]) -> None:
    path = copy("sharded_orig_dcp")
    file = path / "__0_0.distcp"
    file.write_bytes(file.read_bytes()[:-1])
    assert f"{file}: it ends at byte" in _only_problem(path)


@pytest.mark.parametrize("without_numpy", [False, True])
def test_safetensors_cut_anywhere(without_numpy: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(6.0).view(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}, path)
    whole = path.read_bytes()
    if without_numpy:
        # What Python has for a module that cannot be imported.
        monkeypatch.setitem(sys.modules, "numpy", None)
    assert findings(path) == []
    for place in range(len(whole)):
        path.write_bytes(whole[:place])
        assert [finding.rule for finding in findings(path)] == ["FSDP405"], place
    for old, new in (
        (b"[2,3]", b"[3,3]"),
        (b"[0,24]", b"[4,24]"),
        (b'"F32"', b'"I64"'),
        (b"[2,3]", b"[2,-"),
        (b"{", b"["),
    ):
        path.write_bytes(whole.replace(old, new, 1))
        assert [finding.rule for finding in findings(path)] == ["FSDP405"], (old, new)


def test_an_index_that_names_what_is_not_there(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    files = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index.write_text(json.dumps({"weight_map": files}))
    assert (
        _only_problem(tmp_path) == f"{index}: it lists b in 'model-00002-of-00002.safetensors', which does not "
        f"contain it"
    )
    index.write_text("{")
    assert "not an index of safetensors" in _only_problem(tmp_path)


def test_ranks_that_disagree_about_a_shape(tmp_path: Path, copy: Callable[[str], Path]) -> None:
    path, other = copy("sharded_orig"), copy("sharded_optim_orig")
    shutil.copy(other / "rank1.pt", path / "rank_1.pt")
    (found,) = open_all(path)
    assert found.problems


def test_the_command_tells_of_it_and_how_it_ends(
    copy: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy("sharded_orig_dcp")
    (path / "__1_0.distcp").unlink()
    assert main(["checkpoint", "inspect", str(path)]) == 1
    out, err = capsys.readouterr()
    assert "FSDP405 manual: not complete: " in out
    assert out.endswith("  load: # not complete\n")
    assert err == ""


def test_a_text_is_no_checkpoint_whatever_it_is_called(tmp_path: Path) -> None:
    """Corpora in Portuguese are called so; a file of zeros, or an empty one, was a checkpoint once."""
    (tmp_path / "train.pt").write_text("O rato roeu a rolha da garrafa do rei da Rússia.\n" * 20, encoding="utf-8")
    assert findings(tmp_path) == []
    for broken in (b"", b"\0" * 600, b"\xff\xfe\xfd"):
        (tmp_path / "train.pt").write_bytes(broken)
        assert [finding.rule for finding in findings(tmp_path)] == ["FSDP405"], broken


def test_a_pointer_of_git_lfs_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    assert _only_problem(tmp_path).endswith("not the file itself: run git lfs pull")
