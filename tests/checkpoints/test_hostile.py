"""Files made to run code, to take all memory or to lead out of their folder: told, and harmless."""

from __future__ import annotations

import resource
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fixtures.checkpoints import hostile
from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.checkpoints.judge.judge import findings
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.cli import main


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[Path]:
    """The file that payloads would write. It must not be there after the test."""
    path = tmp_path / "sentinel"
    yield path
    assert not path.exists(), "a payload ran"


def _rules(path: Path) -> list[str]:
    return [finding.rule for finding in findings(path)]


@pytest.mark.parametrize("name", hostile.PAYLOADS)
def test_the_payloads_are_real(name: str, tmp_path: Path) -> None:
    """In a process of its own: each of them writes its file when it is unpickled."""
    written = tmp_path / "written"
    (tmp_path / "payload").write_bytes(hostile.PAYLOADS[name](written))
    code = "import pickle, sys, torch.hub; pickle.load(open(sys.argv[1], 'rb'))"
    subprocess.run([sys.executable, "-c", code, tmp_path / "payload"], capture_output=True, check=False)
    assert written.exists()


@pytest.mark.parametrize("name", hostile.PAYLOADS)
@pytest.mark.parametrize("file", ["model.pt", "rank_0.pt", "pytorch_model.bin"])
def test_in_a_file_of_torch_save(name: str, file: str, tmp_path: Path, sentinel: Path) -> None:
    hostile.archive(hostile.PAYLOADS[name](sentinel), tmp_path / file)
    assert _rules(tmp_path / file)[0] == "FSDP406"
    assert _rules(tmp_path)[0] == "FSDP406"


@pytest.mark.parametrize("name", hostile.PAYLOADS)
def test_in_an_old_file_of_torch_save(name: str, tmp_path: Path, sentinel: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert _rules(tmp_path / "old.pt") == []
    payload = hostile.PAYLOADS[name](sentinel)
    (tmp_path / "old.pt").write_bytes(b"\x80\x02N." + payload)
    assert _rules(tmp_path / "old.pt") == ["FSDP406"]


@pytest.mark.parametrize("name", hostile.PAYLOADS)
def test_in_metadata(name: str, tmp_path: Path, sentinel: Path) -> None:
    hostile.in_metadata(hostile.PAYLOADS[name](sentinel), tmp_path / "step")
    assert _rules(tmp_path / "step")[0] == "FSDP406"


@pytest.mark.parametrize("name", hostile.PAYLOADS)
def test_in_a_value_of_a_folder(name: str, tmp_path: Path, sentinel: Path) -> None:
    hostile.in_byte_item(hostile.PAYLOADS[name](sentinel), tmp_path / "step")
    assert _rules(tmp_path / "step")[0] == "FSDP406"


def test_a_zip_behind_a_pickle_is_the_pickle_that_torch_would_run(tmp_path: Path, sentinel: Path) -> None:
    torch.save({"w": torch.ones(1)}, tmp_path / "good.pt")
    data = hostile.by_system(sentinel) + (tmp_path / "good.pt").read_bytes()
    (tmp_path / "both.pt").write_bytes(data)
    assert _rules(tmp_path / "both.pt") == ["FSDP406"]


def test_inspect_says_so_and_never_how_to_load_it(
    tmp_path: Path, sentinel: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile.archive(hostile.by_system(sentinel), tmp_path / "model.pt")
    assert main(["checkpoint", "inspect", str(tmp_path / "model.pt")]) == 1
    out, err = capsys.readouterr()
    assert "FSDP406 manual: loading this file would execute posix.system" in out
    assert "torch.load(" not in out.partition("load:")[2]
    assert err == ""


@pytest.mark.parametrize(
    "name", ["../outside.distcp", "/etc/passwd", "a/../../b.distcp", "..\\outside.distcp", "x\0y.distcp"]
)
def test_a_folder_that_points_out_of_itself(name: str, tmp_path: Path) -> None:
    hostile.with_file_name(name, tmp_path / "step")
    (tmp_path / "outside.distcp").write_bytes(b"x" * 10000)
    (found,) = open_all(tmp_path / "step")
    assert "which is not in its folder" in found.problems[0]
    assert _rules(tmp_path / "step") == ["FSDP405"]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (hostile.huge_memo, "memo slot 4294967294"),
        (hostile.many_by_reference, "more values than its pickle has bytes"),
        (lambda: hostile.nested(100_000), "nested too deeply"),
        (hostile.holding_itself, "contains itself"),
        (lambda: b"\x80\x02\x82\x01.", "extension 1"),
        (lambda: b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".", "not a complete pickle"),
        (lambda: b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b".", "not a complete pickle"),
        (lambda: b"\x80\x02(ccollections\nOrderedDict\nq\x00b.", "not a complete pickle"),
        (lambda: b"", "not a complete pickle"),
    ],
)
def test_pickles_that_take_all_memory_or_are_none(make: Callable[[], bytes], told: str, tmp_path: Path) -> None:
    hostile.archive(make(), tmp_path / "model.pt")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (found,) = open_all(tmp_path / "model.pt")
    assert told in found.problems[0]
    assert _rules(tmp_path / "model.pt") == ["FSDP405"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_a_bomb_is_not_unpacked(tmp_path: Path) -> None:
    hostile.bomb(tmp_path / "model.pt")
    (found,) = open_all(tmp_path / "model.pt")
    assert "is compressed, which torch.save never does" in found.problems[0]


def test_an_archive_with_two_pickles_of_one_name(tmp_path: Path, sentinel: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(tmp_path / "model.pt", "w") as made:
        made.writestr("a/data.pkl", b"\x80\x02}.")
        made.writestr("a/data.pkl", hostile.by_system(sentinel))
    assert _rules(tmp_path / "model.pt") == ["FSDP405"]


def test_a_tensor_beyond_its_storage(tmp_path: Path) -> None:
    hostile.tensor_beyond_its_storage(tmp_path / "model.pt")
    (found,) = open_all(tmp_path / "model.pt")
    assert "it extends beyond its storage 0" in found.problems[0]


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(BadCheckpoint, match="neither a torch"):
        open_all(tmp_path / "notes.txt")
    assert open_all(tmp_path) == []
