"""What a checkpoint costs is bounded by its size: held by limits of the system on memory and on the processor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fixtures.checkpoints import bombs, hostile
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.entries import BadCheckpoint
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from fsdp_migrate.cli import main
from tests.checkpoints.convert.converting import converted

#: What Python and the libraries of the command map before they read anything.
_BASE = 600 * 2**20
#: What SECURITY.md states.
_PER_BYTE = 500
_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[2]), int(sys.argv[2])))
from fsdp_migrate.cli import main
raise SystemExit(main(sys.argv[3:]))
"""


def _limited(memory: int, seconds: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _LIMITED, str(memory), str(seconds), *arguments]
    # Each thread of the numerical libraries would map memory that nothing uses.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("bombs")
    bombs.write(made)
    return made


def test_all_at_once(folder: Path) -> None:
    """Any one of them that hangs or eats memory ends the process by a signal."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    assert size < 8 * 2**20
    done = _limited(_BASE + _PER_BYTE * size, 60, "checkpoint", "inspect", "--format", "json", str(folder))
    assert done.returncode == 1, done.stderr[-2000:]
    assert "Traceback" not in done.stderr
    assert len(json.loads(done.stdout)["checkpoints"]) > 60


@pytest.mark.parametrize("to", Target)
def test_none_is_converted(to: Target, folder: Path, tmp_path: Path) -> None:
    for path in sorted(folder.iterdir()):
        with pytest.raises((CannotConvert, BadCheckpoint)):
            converted(path, tmp_path / "out", to)
        assert list(tmp_path.iterdir()) == []


def test_a_pickle_of_nothing_but_values(tmp_path: Path) -> None:
    """Two bytes for each value is the most that a pickle can ask for."""
    hostile.archive(b"\x80\x02](" + b"K\x01" * 200_000 + b"e.", tmp_path / "model.pt")
    done = _limited(
        _BASE + _PER_BYTE * 400_000, 60, "checkpoint", "inspect", "--format", "json", str(tmp_path / "model.pt")
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_hides_behind_many_pickles(folder: Path) -> None:
    for name in ("many.pkl", "late.pkl"):
        (found,) = open_all(folder / name)
        assert "more than 1000 pickles" in found.problems[0]


def test_views_that_repeat_a_little_are_converted(tmp_path: Path) -> None:
    torch.save({"w": torch.arange(4.0).expand(1000, 4)}, tmp_path / "in.pt")
    converted(tmp_path / "in.pt", tmp_path / "out.pt", Target.FULL)
    assert torch.equal(torch.load(tmp_path / "out.pt")["w"], torch.arange(4.0).expand(1000, 4))
    hostile.archive(b"\x80\x02" + bombs.view((2**30,), (0,)), tmp_path / "large.pt", **{"data/0": bytes(16)})
    with pytest.raises(CannotConvert, match="its tensors repeat their elements"):
        converted(tmp_path / "large.pt", tmp_path / "out", Target.FULL)


def test_pipes_beside_what_is_asked_for(tmp_path: Path) -> None:
    """Named themselves, as metadata, as a shard, and as what ``--groups`` reads; opening one would never return."""
    os.mkfifo(tmp_path / ".metadata")
    os.mkfifo(tmp_path / "model-2.safetensors")
    os.mkfifo(tmp_path / "groups.json")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}')
    torch.save({"state": {0: {"s": torch.zeros(2, 2)}}, "param_groups": [{"params": [0]}]}, tmp_path / "optimizer.pt")
    for arguments in (
        ["inspect", str(tmp_path / ".metadata")],
        ["inspect", str(tmp_path / "model.safetensors.index.json")],
        ["inspect", str(tmp_path)],
        [
            *("convert", str(tmp_path / "optimizer.pt"), str(tmp_path / "out"), "--to", "full"),
            *("--groups", str(tmp_path / "groups.json")),
        ],
    ):
        assert main(["checkpoint", *arguments]) in (1, 2)


def test_a_target_inside_of_the_source(tmp_path: Path) -> None:
    """Also where the folder was named by its ``.metadata``, or through a link."""
    hostile.with_file_name("__0_0.distcp", tmp_path / "in")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    for source, target in (("in", "in/out"), ("in/.metadata", "in/out"), ("in", "link/out"), ("link", "in/out")):
        with pytest.raises(CannotConvert, match="inside the checkpoint that is read"):
            converted(tmp_path / source, tmp_path / target, Target.FULL)
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == [".metadata", "__0_0.distcp"]
