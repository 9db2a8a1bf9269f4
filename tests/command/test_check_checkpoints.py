"""``check`` on checkpoints: told by what is in them, looked at as a whole, and never loaded."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fsdp_migrate.cli import main

Capture = pytest.CaptureFixture[str]
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"


class _Touches:
    """Unpickled, it would make a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return Path.touch, (self._path,)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a source and a few checkpoints in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("x = 1\n")
    (tmp_path / "out").mkdir()
    torch.save({"layer.weight": torch.ones(2, 2)}, tmp_path / "out" / "good.pt")
    torch.save({"layer._flat_param": torch.ones(4)}, tmp_path / "out" / "flat.pt")
    return tmp_path


def _told(capsys: Capture, *arguments: str) -> list[tuple[str, str]]:
    """Path and rule of every finding."""
    capsys.readouterr()
    main(["check", "--format", "json", *arguments])
    return [(one["path"], one["rule"]) for one in json.loads(capsys.readouterr().out)["findings"]]


def test_a_folder_has_sources_and_checkpoints(folder: Path, capsys: Capture) -> None:
    assert main(["check", "."]) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("out/flat.pt: FSDP402 manual: 1 flat parameter of FSDP1")
    assert out[-1] == "1 source file and 2 checkpoints checked, 1 finding. Next: fsdp-migrate rules FSDP402"


def test_content_decides_and_not_the_name(folder: Path, capsys: Capture) -> None:
    (folder / "out" / "flat.pt").rename(folder / "weights")
    assert _told(capsys, "weights") == [("weights", "FSDP402")]
    (folder / "weights").rename(folder / "weights.py")
    assert _told(capsys, "weights.py") == [("weights.py", "FSDP402")]
    (folder / "tool").write_text("#!/usr/bin/env python\nfrom torch.distributed.fsdp import FullyShardedDataParallel\n")
    (folder / "tool").write_text((folder / "tool").read_text() + "FullyShardedDataParallel(model)\n")
    assert {path for path, _ in _told(capsys, "tool", "train.py")} == {"tool"}


def test_a_part_stands_for_the_whole_checkpoint_once(folder: Path, capsys: Capture) -> None:
    for rank in range(2):
        (folder / "out" / "flat.pt").with_name(f"model_rank_{rank}.pt").write_bytes(
            (folder / "out" / "flat.pt").read_bytes()
        )
    whole = [("out/model_rank_0.pt", "FSDP402")]
    assert _told(capsys, "out/model_rank_1.pt") == whole
    assert _told(capsys, "out/model_rank_1.pt", "out/model_rank_0.pt", str(folder / "out/model_rank_0.pt")) == whole
    assert sorted(_told(capsys, "out/model_rank_1.pt", "out")) == [("out/flat.pt", "FSDP402"), *whole]


def test_many_files_of_one_folder_are_looked_at_together(
    folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp_migrate.check import targets

    looked: list[Path] = []
    real = targets.find

    def find(path: Path, *more: object) -> object:
        looked.append(path)
        return real(path, *more)

    monkeypatch.setattr(targets, "find", find)
    names = [f"out/model_rank_{rank}.pt" for rank in range(20)]
    for name in names:
        (folder / name).write_bytes((folder / "out" / "good.pt").read_bytes())
    assert main(["check", *names]) == 0
    assert "0 source files and 1 checkpoint" in capsys.readouterr().out
    assert looked == [Path("out")]


def test_what_runs_code_is_told_and_not_run(folder: Path, capsys: Capture) -> None:
    from os import system

    class _Calls:
        def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
            return system, (f"touch {folder / 'ran'}",)

    (folder / "evil.pt").write_bytes(pickle.dumps(_Calls(), protocol=2))
    (folder / "path.pt").write_bytes(pickle.dumps(_Touches(folder / "ran"), protocol=2))
    assert ("evil.pt", "FSDP406") in _told(capsys, ".")
    assert ("evil.pt", "FSDP406") in _told(capsys, "evil.pt", "path.pt")
    assert not (folder / "ran").exists()


def test_broken_ones_are_findings_and_not_errors(folder: Path, capsys: Capture) -> None:
    good = (folder / "out" / "good.pt").read_bytes()
    (folder / "cut.pt").write_bytes(good[: len(good) // 2])
    (folder / "empty.ckpt").write_bytes(b"")
    assert _told(capsys, "cut.pt", "empty.ckpt") == [("cut.pt", "FSDP405"), ("empty.ckpt", "FSDP405")]
    assert main(["check", "cut.pt"]) == 1


def test_pointers_of_git_lfs_are_left_out_and_named(folder: Path, capsys: Capture) -> None:
    (folder / "out" / "flat.pt").write_bytes(LFS)
    assert main(["check", "out", "out/flat.pt"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("out/flat.pt: skipped: this is a Git LFS pointer, not the file itself: run git lfs pull\n")
    assert "1 checkpoint checked" in out


def test_rules_about_checkpoints_are_selected_ignored_and_known(folder: Path, capsys: Capture) -> None:
    assert main(["check", "--ignore", "FSDP402", "."]) == 0
    assert main(["check", "--select", "FSDP1", "."]) == 0
    assert main(["check", "--select", "FSDP4", "."]) == 1
    assert main(["check", "--write-baseline", "known.json", "."]) == 0
    assert main(["check", "--baseline", "known.json", "."]) == 0
    torch.save({"a._flat_param": torch.ones(4), "b._flat_param": torch.ones(4)}, folder / "out" / "flat.pt")
    assert main(["check", "--baseline", "known.json", "."]) == 1


def test_what_git_ignores_is_passed_over_unless_it_is_named(
    folder: Path, commit: Callable[[], None], capsys: Capture
) -> None:
    (folder / ".gitignore").write_text("out/\n*.pth\n")
    (folder / "more").mkdir()
    (folder / "more" / "flat.pth").write_bytes((folder / "out" / "flat.pt").read_bytes())
    (folder / "more" / "a.py").write_text("x = 1\n")
    commit()
    assert main(["check", "."]) == 0
    assert "2 source files and 0 checkpoints" in capsys.readouterr().out
    assert _told(capsys, "out", "more/flat.pth") == [("more/flat.pth", "FSDP402"), ("out/flat.pt", "FSDP402")]
    (folder / "venv").mkdir()
    (folder / "out" / "flat.pt").rename(folder / "venv" / "flat.pt")
    assert main(["check", "."]) == 0


def test_a_checkpoint_costs_its_metadata_only(folder: Path, capsys: Capture) -> None:
    with (folder / "huge.safetensors").open("wb") as stream:
        header = json.dumps({"w": {"dtype": "F32", "shape": [1 << 38], "data_offsets": [0, 1 << 40]}}).encode()
        stream.write(len(header).to_bytes(8, "little") + header)
        # A sparse file: a tebibyte that takes no room, and could not be read in this test's lifetime.
        stream.truncate(8 + len(header) + (1 << 40))
    assert main(["check", "huge.safetensors"]) == 0
    assert "0 source files and 1 checkpoint checked" in capsys.readouterr().out


def test_an_unreadable_folder_is_an_error(folder: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def scandir(path: str) -> object:
        if Path(path).name == "out":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert main(["check", "."]) == 2
    assert "could not read: Permission denied" in capsys.readouterr().out


@pytest.mark.parametrize("form", ["text", "json", "sarif", "github", "junit"])
def test_hostile_names_and_files(form: str, folder: Path, capsys: Capture) -> None:
    flat = (folder / "out" / "flat.pt").read_bytes()
    hostile = folder / "new\nline"
    hostile.mkdir()
    (hostile / "\x1b[31m\udcff,:%.pt").write_bytes(flat)
    (hostile / "up").symlink_to("..")
    (hostile / "gone.pt").symlink_to("absent")
    (hostile / "x.safetensors").write_bytes(b"\xff" * 7 + b"\x7f{")
    (hostile / "x.safetensors.index.json").write_bytes(b"[" * 100_000)
    (hostile / "dcp").mkdir()
    (hostile / "dcp" / ".metadata").write_bytes(b"\x80\x02" + b"(" * 100_000)
    os.mkfifo(hostile / "pipe.pt")
    assert main(["check", "--format", form, str(hostile)]) == 1
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert out.count("FSDP402") >= 1
    assert out.count("FSDP405") >= 2
    assert main(["check", str(hostile / "pipe.pt")]) == 2
    assert "pipe.pt: error: could not read: not a regular file" in capsys.readouterr().out


def test_rules_about_checkpoints_are_explained(capsys: Capture) -> None:
    for number in range(401, 407):
        assert main(["rules", f"FSDP{number}"]) == 0
        assert capsys.readouterr().out.startswith(f"# FSDP{number} ")
    assert main(["rules", "sharded-tensor-files"]) == 0
