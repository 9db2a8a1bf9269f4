"""Damaged tensor data is noticed by the digests that files carry: in check, inspect, convert and verify."""

from __future__ import annotations

import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fixtures.checkpoints import hostile
from fsdp_migrate.checkpoints.convert.manifest_digests import differences
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.judge.loading import line
from fsdp_migrate.checkpoints.read import manifest
from fsdp_migrate.checkpoints.read.archive import open_archive, whole
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.checkpoints.read.digests import with_damage
from fsdp_migrate.cli import main
from tests.checkpoints.convert.converting import converted


def flipped(path: Path, at: int, bit: int) -> None:
    """Turn one bit of a file over."""
    with path.open("r+b") as stream:
        stream.seek(at)
        (byte,) = stream.read(1)
        stream.seek(at)
        stream.write(bytes([byte ^ (1 << bit)]))


def places(path: Path) -> list[int]:
    """The bytes of all storages of a file of ``torch.save``."""
    return [
        at for start, length, _ in open_archive(whole(path)).storages.values() for at in range(start, start + length)
    ]


def damage(path: Path) -> list[str]:
    """What is found to be damaged at ``path``."""
    return [one.problem for found in open_all(path) for one in with_damage(found).damage]


@pytest.fixture
def copy(two_ranks: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a checkpoint, to be damaged."""

    def make(name: str) -> Path:
        source, target = two_ranks / name, tmp_path / name
        return Path((shutil.copytree if source.is_dir() else shutil.copy)(source, target))

    return make


@pytest.mark.parametrize("name", ["full_orig.pt", "full_flat.pt", "sharded_orig", "mesh", "local_orig", "raw_orig"])
def test_any_flipped_bit_in_a_tensor_is_found(name: str, copy: Callable[[str], Path]) -> None:
    path = copy(name)
    files = [path] if path.is_file() else sorted(path.glob("*.pt"))
    drawn = random.Random(name)
    assert damage(path) == []
    for _ in range(20):
        file = drawn.choice(files)
        at, bit = drawn.choice(places(file)), drawn.randrange(8)
        flipped(file, at, bit)
        assert [str(file) in problem for problem in damage(path)] == [True], (file, at, bit)
        flipped(file, at, bit)
    assert damage(path) == []


def test_a_flipped_bit_in_a_folder_is_found(copy: Callable[[str], Path]) -> None:
    """torch.distributed.checkpoint writes each chunk as a file of torch.save, with digests."""
    path = copy("sharded_orig_dcp")
    found = next(iter(open_all(path)))
    assert damage(path) == []
    chunks = [chunk for entry in found.entries.values() for chunk in getattr(entry, "chunks", ()) if chunk.numel]
    for chunk in random.Random(0).sample(chunks, 10):
        (start, length, _), *_ = open_archive(chunk.where).storages.values()
        flipped(chunk.where.file, start + length // 2, 3)
        assert len(damage(path)) == 1
        flipped(chunk.where.file, start + length // 2, 3)


@pytest.mark.parametrize("to", [Target.DCP, Target.FULL])
@pytest.mark.parametrize("name", ["full_orig.pt", "sharded_orig"])
def test_a_damaged_tensor_is_not_converted(name: str, to: Target, copy: Callable[[str], Path], tmp_path: Path) -> None:
    path = copy(name)
    file = path if path.is_file() else path / "rank_1.pt"
    flipped(file, places(file)[-1], 0)
    with pytest.raises(CannotConvert, match=r"CRC-32.*copy the file again, or use an earlier checkpoint"):
        converted(path, tmp_path / "new", to)
    assert not (tmp_path / "new").exists()


def test_what_is_left_out_may_be_damaged(tmp_path: Path) -> None:
    torch.save({"model": {"w": torch.ones(3)}, "extra": {"e": torch.ones(5)}}, tmp_path / "a.pt")
    flipped(tmp_path / "a.pt", places(tmp_path / "a.pt")[-1], 0)
    with pytest.raises(CannotConvert, match=r"damaged elements of extra\.e.*--leave-out extra\.e converts the rest"):
        converted(tmp_path / "a.pt", tmp_path / "new.pt", Target.FULL)
    done = converted(tmp_path / "a.pt", tmp_path / "new.pt", Target.FULL, leave_out=("extra",))
    assert done.count == 1


def test_check_and_inspect_find_it_when_they_read_tensors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.pt"
    torch.save({"w": torch.ones(3)}, path)
    flipped(path, places(path)[0], 7)
    assert main(["check", str(path)]) == 0
    assert main(["check", "--digests", str(path)]) == 1
    assert "FSDP405 manual: damaged" in capsys.readouterr().out
    assert main(["checkpoint", "inspect", "--digests", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "data/0 differ from what torch.save wrote (CRC-32): w" in shown
    assert "load: # damaged: see the finding" in shown
    (found,) = open_all(path)
    assert line(found).startswith("set_model_state_dict")


def test_a_file_without_digests_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    done = converted(tmp_path / "a.pt", tmp_path / "new", Target.DCP)
    assert any("no CRC-32" in note for note in done.notes)
    assert main(["checkpoint", "verify", str(tmp_path / "a.pt")]) == 2
    assert "not compared" in capsys.readouterr().out
    assert main(["checkpoint", "inspect", "--digests", str(tmp_path / "a.pt")]) == 0
    assert "FSDP405 info: its tensors have no CRC-32" in capsys.readouterr().out


@pytest.mark.parametrize("is_old", [True, False])
def test_check_says_that_it_compared_nothing(is_old: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / ("a.pt" if is_old else "a.safetensors")
    if is_old:
        torch.save({"w": torch.ones(3)}, path, _use_new_zipfile_serialization=False)
    else:
        save_file({"w": torch.ones(3)}, path)
    assert main(["check", str(path)]) == 0
    assert "CRC-32" not in capsys.readouterr().out
    assert main(["check", "--digests", str(path)]) == 0
    assert "its tensors have no CRC-32, so this check cannot detect damage to them" in capsys.readouterr().out


@pytest.mark.parametrize("to", list(Target))
def test_a_conversion_is_verified_by_its_manifest(
    to: Target, two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new"
    done = converted(two_ranks / "sharded_orig", target, to)
    assert main(["checkpoint", "verify", str(target)]) == 0
    assert f"{done.count} tensors are as their manifest says (SHA-256)" in capsys.readouterr().out
    (found,) = open_all(target)
    told = manifest.read(found)
    assert told is not None and len(told.tensors) == done.count
    first = next(iter(told.tensors))
    told.tensors[first]["sha256"] = "0" * 64
    del told.tensors[list(told.tensors)[-1]]
    assert len(list(differences(found, told, lambda count: None))) == 2


@pytest.mark.parametrize("odd", [None, math.nan, math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_is_found_about_a_source_holds_for_its_conversion(
    odd: float | None, dtype: torch.dtype, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once it has digests of its own, nothing else would show that its source had none."""
    source, target, again = tmp_path / "w.safetensors", tmp_path / "new", tmp_path / "again"
    save_file({"w": torch.tensor([1.0, odd or 2.0], dtype=dtype), "n": torch.ones(2, dtype=torch.int64)}, source)
    said = "w: has NaN or infinite values, and no CRC-32 shows that they were saved"
    assert (said in converted(source, target, Target.DCP).notes) is (odd is not None)
    converted(target, again, Target.FULL)
    for path in (target, again):
        assert main(["checkpoint", "verify", str(path)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert shown.count("FSDP405: its source: its tensors have no CRC-32") == 1
        assert (f"FSDP405: its source: {said}" in shown) is (odd is not None)


@pytest.mark.parametrize("to", list(Target))
def test_check_and_inspect_find_in_a_conversion_what_they_find_in_its_source(
    to: Target, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = tmp_path / "w.safetensors", tmp_path / "new"
    save_file({"w": torch.tensor([1.0, math.nan]), "n": torch.ones(2)}, source)
    converted(source, target, to)
    for command in (["check"], ["checkpoint", "inspect"]):
        main([*command, str(target)])
        shown = " ".join(capsys.readouterr().out.split())
        assert "info: its source: its tensors have no CRC-32" in shown, command
        assert "review: its source: w: has NaN or infinite values" in shown, command


def test_what_is_found_about_states_that_were_left_out_is_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moment = torch.ones(2, 2)
    optim = {"state": {"w": {"exp_avg": moment, "exp_avg_sq": moment}}, "param_groups": [{"params": ["w"], "lr": 0.1}]}
    torch.save({"model": {"w": moment + 1}, "optim": optim}, tmp_path / "a.pt")
    assert main(["check", str(tmp_path / "a.pt")]) == 1
    for to in Target:
        converted(tmp_path / "a.pt", tmp_path / to.value, to, leave_out=("optim",))
        assert main(["check", str(tmp_path / to.value)]) == 0
        assert "FSDP407 info: its source: states of 1 parameter" in " ".join(capsys.readouterr().out.split())


def test_a_manifest_is_only_of_what_it_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_file({"w": torch.tensor([math.nan])}, tmp_path / "w.safetensors")
    converted(tmp_path / "w.safetensors", tmp_path / "new", Target.SAFETENSORS)
    save_file({"other": torch.ones(2)}, tmp_path / "new" / "other.safetensors")
    main(["checkpoint", "inspect", str(tmp_path / "new" / "other.safetensors")])
    assert "its source" not in capsys.readouterr().out
    for broken in ("[]", "{", '{"version": 1, "tensors": [], "source": [{"rule": 1}]}', " " * 2**21):
        (tmp_path / "new" / manifest.NAME).write_text(broken)
        assert main(["checkpoint", "inspect", str(tmp_path / "new" / "model.safetensors")]) == 0
        assert "FSDP405 review: assumes that only the manifest is damaged" in capsys.readouterr().out


def test_safetensors_have_their_manifest_alone(
    two_ranks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "new"
    converted(two_ranks / "sharded_orig", target, Target.SAFETENSORS)
    (file,) = target.glob("*.safetensors")
    flipped(file, file.stat().st_size - 1, 0)
    assert damage(target) == []
    assert main(["checkpoint", "verify", str(target)]) == 1
    assert "differ from the ones that were written (SHA-256)" in capsys.readouterr().out
    (target / manifest.NAME).write_text("[]")
    assert main(["checkpoint", "verify", str(target)]) == 2
    (target / manifest.NAME).unlink()
    assert main(["checkpoint", "verify", str(target)]) == 2


def test_lost_moments_are_not_converted(tmp_path: Path) -> None:
    """Once written apart, two states that were one tensor look like any others."""
    moment = torch.ones(2, 2)
    group = {"params": ["w"], "lr": 0.1, "decoupled_weight_decay": True}
    saved = {
        "state": {"w": {"exp_avg": moment, "exp_avg_sq": moment, "step": torch.tensor(1.0)}},
        "param_groups": [group],
    }
    torch.save({"model": {"w": moment + 1}, "optim": saved}, tmp_path / "a.pt")
    torch.save(saved, tmp_path / "alone.pt")
    for to in (Target.DCP, Target.FULL):
        with pytest.raises(
            CannotConvert, match=r"optim\.state\.w first.*FSDP407.*--leave-out optim converts the model"
        ):
            converted(tmp_path / "a.pt", tmp_path / "new", to)
        with pytest.raises(CannotConvert, match="nothing to convert"):
            converted(tmp_path / "alone.pt", tmp_path / "new", to)
    assert converted(tmp_path / "a.pt", tmp_path / "model", Target.SAFETENSORS).count == 1
    assert converted(tmp_path / "a.pt", tmp_path / "dcp", Target.DCP, leave_out=("optim",)).count == 1


@pytest.mark.parametrize("linked", ["__1_0.distcp", ".metadata", "inner folder"])
def test_nothing_outside_of_a_folder_is_read(linked: str, copy: Callable[[str], Path], tmp_path: Path) -> None:
    path = copy("sharded_orig_dcp")
    outside = tmp_path / "elsewhere"
    if linked == "inner folder":
        # As a chunk's file in a folder that is itself a link.
        hostile.with_file_name("sub/__0_0.distcp", tmp_path / "named")
        path = tmp_path / "named"
        outside.mkdir()
        shutil.copy(copy_of_chunk(path), outside / "__0_0.distcp")
        (path / "sub").symlink_to(outside)
    else:
        shutil.move(path / linked, outside)
        (path / linked).symlink_to(outside)
    (found,) = open_all(path)
    assert "a link to a file outside its folder" in found.problems[0]
    with pytest.raises(CannotConvert, match="a link to a file outside its folder"):
        converted(path, tmp_path / "new", Target.FULL)


def copy_of_chunk(folder: Path) -> Path:
    """The file of chunks in ``folder``."""
    return next(folder.glob("*.distcp"))


def test_links_within_a_folder_and_to_it_are_followed(copy: Callable[[str], Path], tmp_path: Path) -> None:
    path = copy("sharded_orig_dcp")
    (path / "__1_0.distcp").rename(path / "renamed")
    (path / "__1_0.distcp").symlink_to("renamed")
    (tmp_path / "latest").symlink_to(path)
    assert converted(tmp_path / "latest", tmp_path / "new", Target.FULL).count == 37
