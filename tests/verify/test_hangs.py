"""A run that does not end: each rank says where it stands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.verify.recorder.orders import Orders
from fsdp_migrate.verify.runs.launch import INJECTED
from fsdp_migrate.verify.runs.rank_stacks import stacks

HEAD = """
import os
import sys
import threading

import torch
import torch.distributed as dist


def hold():
    print("ready", flush=True)
    os.read(0, 1)
"""
PROGRAMS = {
    "a collective": (
        """
def step():
    value = torch.ones(1)
    print("ready", flush=True)
    dist.all_reduce(value)


store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), 2, rank == 0)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
step() if rank else hold()
""",
        ["rank 0: train.py:12 in hold", "rank 1: train.py:19 in step, in all_reduce (distributed_c10d.py:"],
    ),
    "a lock of a thread": (
        """
def wait_for_data():
    done = threading.Event()
    print("ready", flush=True)
    done.wait()


wait_for_data() if rank else hold()
""",
        ["rank 0: train.py:12 in hold", "rank 1: train.py:19 in wait_for_data, in wait (threading.py:"],
    ),
}


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal that a process can be asked by")
@pytest.mark.parametrize("program", PROGRAMS)
def test_each_rank_says_where_it_stands(program: str, tmp_path: Path) -> None:
    text, expected = PROGRAMS[program]
    (tmp_path / "train.py").write_text(f"{HEAD.rstrip()}\n\n\nrank = int(os.environ['RANK'])\n{text.lstrip()}")
    out = tmp_path / "recording"
    port = _free_port()
    environment = os.environ | Orders(str(out)).environment() | {"PYTHONPATH": str(INJECTED)}
    ranks = [
        subprocess.Popen(
            [sys.executable, "train.py", str(port)],
            cwd=tmp_path,
            env=environment | {"RANK": str(rank)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        for process in ranks:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
        found = list(stacks(out))
        # Between that word and the call after it a rank stands in neither.
        for _ in range(100):
            if len(found) == 2 and all(map(str.startswith, found, expected)):
                break
            found = list(stacks(out))
    finally:
        for process in ranks:
            process.kill()
            process.communicate()
    assert [(len(found), *map(str.startswith, found, expected))] == [(2, True, True)], found
    assert list(stacks(out)) == [], "nobody is left to ask"


def _free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
