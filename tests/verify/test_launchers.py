"""Ways to start a training: each is recorded, rank by rank."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from tests.forked import PYTHON
from tests.pool import _free_port
from tests.verify.test_nodes import PROGRAM

BODY = PROGRAM.replace("\n", "\n    ")
#: Starts its ranks itself, as torch's examples do.
SPAWNS = f"""
import os
import torch.multiprocessing as mp


def train(rank, world):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT="{{port}}")
    {BODY}

if __name__ == "__main__":
    mp.{{how}}
"""
#: Starts its ranks as commands.
STARTS = """
import os, subprocess, sys

if "RANK" not in os.environ:
    job = dict(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
    words = [sys.executable, "train.py"]
    ranks = [subprocess.Popen(words, env=os.environ | job | dict(RANK=str(rank))) for rank in range(2)]
    sys.exit(max(each.wait() for each in ranks))
"""
WAYS = {
    "python -m torch.distributed.run": (PROGRAM, (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2")),
    "torchrun": (PROGRAM, (str(Path(sys.executable).with_name("torchrun")), "--nproc-per-node", "2")),
    "mp.spawn": (SPAWNS.replace("{how}", "spawn(train, args=(2,), nprocs=2)"), (sys.executable,)),
    "subprocess": (STARTS + PROGRAM, (sys.executable,)),
}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str, ...]]:
    """Writes the program of one of ``WAYS``; how to start it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def write(way: str) -> tuple[str, ...]:
        text, words = WAYS[way]
        port = str(_free_port())
        (tmp_path / "train.py").write_text(text.replace("{port}", port), encoding="utf-8")
        more = ("--master-port", port) if "--nproc-per-node" in words else ()
        return ("--", *words, *more, "train.py")

    return write


@pytest.mark.parametrize("way", WAYS)
def test_every_rank_is_recorded(
    way: str, start: Callable[[str], tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "record", "out", *start(way)]) == 0, capsys.readouterr()
    assert "3 steps on 2 ranks recorded in out" in capsys.readouterr().out
