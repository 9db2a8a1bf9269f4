"""Recordings of a run on several nodes: each records its own ranks, and the folder of all of them is read as one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.verify.recording.read import read
from tests.forked import PYTHON
from tests.pool import _free_port

PROGRAM = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = FSDP(torch.nn.Linear(3, 2), device_id=torch.device("cpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    model(torch.randn(4, 3)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.barrier()
dist.destroy_process_group()
"""


def test_two_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two agents of torchrun, as two machines would have them."""
    (tmp_path / "train.py").write_text(PROGRAM, encoding="utf-8")
    port = str(_free_port())

    def record(node: int) -> subprocess.Popen[str]:
        agent = (PYTHON, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node))
        where = ("--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", port, "train.py")
        command = (sys.executable, "-m", "fsdp_migrate", "verify", "record", f"node-{node}", "--", *agent, *where)
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    started = [record(node) for node in range(2)]
    outputs = [process.communicate(timeout=300)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    for node, output in enumerate(outputs):
        assert f"1 of 2 ranks recorded in node-{node}, all on this node" in output
    node_0, node_1 = str(tmp_path / "node-0"), str(tmp_path / "node-1")
    assert main(["verify", "compare", node_0, node_0]) == 2
    assert "1 of 2 ranks were recorded, rank 1 is missing; copy the files or the folders" in capsys.readouterr().err
    # Their folders in one folder are one recording.
    assert main(["verify", "compare", str(tmp_path), str(tmp_path)]) == 0
    shutil.copy(Path(node_1, "rank-1.jsonl"), node_0)
    recording = read(Path(node_0))
    assert (recording.world, len(recording.steps), recording.finished) == (2, 3, True)
    assert main(["verify", "compare", str(tmp_path), str(tmp_path)]) == 2
    assert "rank 1 is in" in capsys.readouterr().err
