"""Programs that ask for GPUs, under ``--cpu`` on a machine that has none."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fsdp_migrate.cli import main
from tests.forked import PYTHON

#: As a team writes it for its GPUs.
PROGRAM = """
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullStateDictConfig, StateDictType
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


def main():
    assert torch.cuda.is_available(), "needs a GPU"
    dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.cuda.manual_seed(0)
    device = torch.device("cuda", local)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(device)
    model = FSDP(
        model,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=torch.cuda.current_device(),
        sync_module_states=True,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for step in range(3):
        batch = torch.randn(2, 8).pin_memory().cuda(non_blocking=True)
        weight = torch.ones(4, device="cuda") + torch.ones(4).to(local)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        with torch.autocast("cuda", dtype=torch.bfloat16), torch.cuda.stream(torch.cuda.Stream()):
            loss = (model(batch) * weight).sum()
        loss.backward()
        model.clip_grad_norm_(1e4)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        mean = loss.detach().clone()
        dist.all_reduce(mean, op=dist.ReduceOp.AVG)
        torch.cuda.synchronize()
        print(mean.item(), start.elapsed_time(end), torch.cuda.max_memory_allocated(), flush=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, FullStateDictConfig(offload_to_cpu=True)):
        state = model.state_dict()
    if local == 0:
        torch.save(state, "model.pt")
        torch.load("model.pt", map_location=device)
    dist.barrier(device_ids=[local])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
RUN = ("--", PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py")

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without a GPU")


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(PROGRAM.splitlines(), 1) if text in line)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Commits a ``train.py``, in whose folder the command is given."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    subprocess.run(["git", "init", "-q"], check=True)

    def write(text: str = PROGRAM) -> None:
        (tmp_path / "train.py").write_text(text, encoding="utf-8")
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for arguments in (("add", "train.py"), (*identity, "commit", "-qm", "all")):
            subprocess.run(["git", *arguments], check=True)

    return write


@pytest.mark.parametrize("to", ["native", "shim"])
def test_it_trains_the_same_before_and_after(
    to: str, project: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    project()
    code = main(["verify", "--cpu", "--no-repeat", "--steps", "3", "--to", to, "--format", "json", *RUN])
    said = capsys.readouterr()
    assert code == 0, said
    found = json.loads(said.out)
    assert (found["steps"], found["ranks"]) == (3, [2, 2])
    (note,) = (note for note in found["notes"] if "--cpu" in note)
    assert f"train.py:{line_of('is_available')} (torch.cuda.is_available)" in note
    assert f"train.py:{line_of('init_process_group')} (init_process_group(nccl)" in note


def test_it_is_traced(project: Callable[[], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project()
    assert main(["trace", "--cpu", "--steps", "9", *RUN]) == 0, capsys.readouterr()
    out = capsys.readouterr().out
    assert f"train.py:{line_of('model = FSDP(')}: wraps Sequential in 3 units" in out
    record = json.loads((tmp_path / "trace.json").read_text())
    assert record["ended"] == {"0": "over", "1": "over"}
    # What the program gave is recorded, and not what was put in its place.
    assert record["wraps"][0]["arguments"]["device_id"] == 0


@pytest.mark.parametrize(
    "line",
    [
        'assert torch.cuda.is_available(), "needs a GPU"',
        'dist.init_process_group("nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])))',
        "torch.cuda.set_device(local)",
        "model = FSDP(",
    ],
)
def test_without_it_the_line_that_asks_is_named(
    line: str, project: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    text = PROGRAM
    asks = ('assert torch.cuda.is_available(), "needs a GPU"', "torch.cuda.set_device(local)", ".to(device)")
    for each in asks:
        if each != line:
            text = text.replace(each, "" if each.startswith(".") else "pass")
    if "init_process" not in line:
        text = text.replace('"nccl", device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"]))', '"gloo"')
    if line == "model = FSDP(":
        text = text.replace("device_id=torch.cuda.current_device(),", "")
    project(text)
    assert main(["trace", *RUN]) == 1
    said = capsys.readouterr().err
    assert f"train.py:{line_of(line)} needs a GPU, and torch finds none here: pass --cpu" in said


def test_what_it_cannot_answer_is_said(project: Callable[[str], None], capsys: pytest.CaptureFixture[str]) -> None:
    project(PROGRAM.replace("torch.cuda.synchronize()", "torch.cuda.mem_get_info()"))
    assert main(["verify", "--cpu", *RUN]) == 2
    said = capsys.readouterr().err
    assert f"train.py:{line_of('torch.cuda.synchronize()')} needs a GPU" in said
    assert "--cpu has no replacement for it" in said
