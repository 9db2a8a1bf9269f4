"""The programs that are traced here start by :data:`tests.forked.PYTHON`."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.trace.record import Trace, load
from tests import forked

#: A training on two ranks: a model in a dictionary, two calls of one function, a restore that never runs.
TRAIN = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType


def clear(thing):
    return thing.state_dict()


def restore(thing, state):
    thing.load_state_dict(state)


class Parts:
    def __init__(self, net):
        self.net = net

    @property
    def never(self):
        raise RuntimeError("a look must not run this")


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    parts = {"net": FSDP(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), device_id=torch.device("cpu"))}
    holder = Parts(parts["net"])
    optimizer = torch.optim.SGD(holder.net.parameters(), lr=0.1)
    for step in range(3):
        loss = parts["net"](torch.ones(2, 8)).sum()
        loss.backward()
        parts["net"].clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        holder.never if step > 9 else None
    with FSDP.state_dict_type(parts["net"], StateDictType.FULL_STATE_DICT):
        clear(parts["net"])
    clear(nn.Linear(2, 2))
    if dist.get_rank() == 0:
        print("saved", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@pytest.fixture(scope="session", autouse=True)
def _forks() -> None:
    forked.start()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with :data:`TRAIN`, in which the command is given."""
    root = tmp_path / "project"
    root.mkdir()
    (root / "train.py").write_text(TRAIN, encoding="utf-8")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("init", "-q"), ("add", "."), (*identity, "commit", "-qm", "all")):
        subprocess.run(["git", *arguments], cwd=root, check=True)
    monkeypatch.chdir(root)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return root


@pytest.fixture
def traced(project: Path) -> Callable[..., tuple[int, Trace]]:
    """Traces ``train.py`` with these options; the exit code and the record."""

    def run(*options: str, words: tuple[str, ...] = TORCHRUN) -> tuple[int, Trace]:
        record = project.parent / "trace.json"
        code = main(["trace", "-o", str(record), *options, "--", forked.PYTHON, *words, "train.py"])
        return code, load(record)

    return run
