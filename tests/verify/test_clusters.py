"""The scripts for clusters, run by a stand-in for SLURM: each node is a process group of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.trace.record import load
from tests.forked import PYTHON
from tests.pool import _free_port
from tests.verify.test_nodes import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "docs/workflows"
#: Starts each task as SLURM does: with its number and that of its node in the environment.
SRUN = """#!{python}
import os, subprocess, sys
words, tasks = sys.argv[1:], int(os.environ["SLURM_NNODES"])
while words[0].startswith("--"):
    option, _, value = words.pop(0).partition("=")
    tasks = int(value) if option == "--ntasks" else tasks
names = [dict(SLURM_NODEID=str(n), SLURM_PROCID=str(n), SLURM_NTASKS=str(tasks)) for n in range(tasks)]
started = [subprocess.Popen(words, env=os.environ | one) for one in names]
sys.exit(max(each.wait() for each in started))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """The environment of a job on two nodes of one GPU each."""
    tools = tmp_path / "bin"
    tools.mkdir()
    texts = {
        "srun": SRUN.format(python=sys.executable),
        "scontrol": "#!/bin/sh\necho 127.0.0.1\nsleep 0.2\necho node-1\n",
        "torchrun": f'#!/bin/sh\nexec {PYTHON} -m torch.distributed.run "$@"\n',
        "fsdp-migrate": f'#!/bin/sh\nexec {sys.executable} -m fsdp_migrate "$@"\n',
    }
    for name, text in texts.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.py").write_text(PROGRAM, encoding="utf-8")
    job = {"SLURM_JOB_NODELIST": "node-[0-1]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "GPUS": "1"}
    return {**os.environ, **job, "PORT": str(_free_port()), "PATH": f"{tools}:{os.environ['PATH']}"}


def script(name: str, cluster: dict[str, str], *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(SCRIPTS / name), *words]
    return subprocess.run(command, cwd=cwd, env=cluster, capture_output=True, text=True, timeout=300, check=False)


def test_both_trees_are_recorded_and_compared(cluster: dict[str, str], tmp_path: Path) -> None:
    done = script("verify.sbatch", cluster, "old", "new", "out", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 2 ranks recorded in" in done.stdout
    assert "values over 3 steps on 2 ranks, bit for bit" in done.stdout
    # Which node gets which ranks is the rendezvous's choice.
    names = sorted(path.name for path in (tmp_path / "out/before").glob("*/rank-*"))
    assert names == ["rank-0.jsonl", "rank-1.jsonl"]


def test_a_rounding_is_measured_as_on_one_machine(cluster: dict[str, str], tmp_path: Path) -> None:
    """A sharded model whose gradients are clipped, natively in the second tree."""
    (tmp_path / "old/train.py").write_text(CLIPPED, encoding="utf-8")
    (tmp_path / "new/train.py").write_text(CLIPPED, encoding="utf-8")
    assert main(["rewrite", "--quiet", "--allow-dirty", str(tmp_path / "new")]) == 0
    done = script("verify.sbatch", cluster, "old", "new", "a folder", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nothing to do: rounding of that size has the same effect on the old run." in done.stdout
    assert "equal within the measured effect of rounding" in done.stdout


CLIPPED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(*(nn.Linear(31, 31) for _ in range(6)))
model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    batch = torch.randn(4, 31, generator=torch.Generator().manual_seed(step))
    (100 * model(batch)).square().mean().backward()
    model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


def test_a_missing_node_is_named(cluster: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = script("trace.sbatch", cluster, "../out", "train.py", cwd=tmp_path / "old")
    assert done.returncode == 0, done.stdout + done.stderr
    whole = load(tmp_path / "out/trace.json")
    assert (whole.world, whole.missing, whole.is_whole) == (2, [], True)
    (alone,) = (file for file in (tmp_path / "out").glob("node-*.json") if 1 in load(file).ended)
    assert main(["trace", "--merge", str(alone), "-o", str(tmp_path / "half.json")]) == 1
    assert "without rank 0: the record removes no finding" in capsys.readouterr().err


def test_ranks_that_srun_starts_itself_are_recorded(cluster: dict[str, str], tmp_path: Path) -> None:
    """Without torchrun: the program reads SLURM's variables, and OUT is on a disk that all nodes see."""
    start = "import os\nos.environ.update(RANK=os.environ['SLURM_PROCID'], WORLD_SIZE=os.environ['SLURM_NTASKS'],"
    start += " MASTER_ADDR='127.0.0.1', MASTER_PORT=os.environ['PORT'])\n"
    (tmp_path / "old/train.py").write_text(start + PROGRAM, encoding="utf-8")
    command = (sys.executable, "-m", "fsdp_migrate", "verify", "record", "../out", "--", "srun", "--ntasks=2")
    done = subprocess.run(
        [*command, PYTHON, "train.py"], cwd=tmp_path / "old", env=cluster, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 steps on 2 ranks recorded in" in done.stdout
