"""The pool returns, raises, survives hangs, and lets nothing of one job reach the next."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pool import Pool, WorkerError


def total_of_ranks(rank: int, world_size: int, offset: int) -> tuple[int, float]:
    import torch
    import torch.distributed as dist

    value = torch.tensor(float(rank + offset))
    dist.all_reduce(value)
    return rank, value.item()


def raise_on_rank_1(rank: int, world_size: int) -> None:
    import torch.distributed as dist

    if rank == 1:
        raise KeyError("told apart")
    dist.barrier()


def hang_on_rank_1(rank: int, world_size: int) -> None:
    if rank == 1:
        signal.pause()


def die_on_rank_1(rank: int, world_size: int) -> None:
    if rank == 1:
        os._exit(7)


def hang_when_rank_1_leaves(rank: int, world_size: int) -> None:
    import torch.distributed as dist

    if rank == 1:
        dist.destroy_process_group = signal.pause


def leave_traces(rank: int, world_size: int) -> None:
    import torch

    os.environ["TRACE"] = "left"
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    sys.path.insert(0, "/left")
    os.chdir("/")


def see_traces(rank: int, world_size: int) -> list[object]:
    import torch

    state = [os.environ.get("TRACE"), torch.get_default_dtype(), torch.empty(1).device.type, "/left" in sys.path]
    return [*state, str(Path.cwd()) == "/", torch.initial_seed() == 5, torch.get_num_threads()]


def warn_in(rank: int, world_size: int, module: str) -> None:
    warnings.warn_explicit("beware", UserWarning, f"{module}.py", 1, module=module)


def norm_over_group(rank: int, world_size: int, groups: int) -> float:
    import torch
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    group = [torch.distributed.new_group() for _ in range(groups)][-1]
    tensor = DTensor.from_local(torch.full((2,), 2.0), DeviceMesh.from_group(group, "cpu"), [Shard(0)])
    norms = torch.stack([torch.linalg.vector_norm(tensor)] * 4)
    total: float = torch.linalg.vector_norm(norms).full_tensor().item()
    return total


def end_when(rank: int, world_size: int, left: str) -> float:
    """Rank 1 is slower; rank 0 writes to the file ``left`` when it leaves the group. Returns when the job ended."""
    import torch.distributed as dist

    leave = dist.destroy_process_group

    def record() -> None:
        Path(left).write_text(str(time.monotonic()))
        dist.destroy_process_group = leave
        leave()

    if rank == 0:
        dist.destroy_process_group = record
    else:
        time.sleep(0.2)
    return time.monotonic()


@contextlib.contextmanager
def greeting() -> Iterator[None]:
    os.environ["GREETING"] = "hello"
    yield


def test_returns_results_in_rank_order(pool: Pool) -> None:
    assert pool.run(total_of_ranks, 2, 10) == [(0, 21.0), (1, 21.0)]
    assert pool.run(total_of_ranks, 4, 0) == [(rank, 6.0) for rank in range(4)]


def test_no_rank_leaves_before_all_are_done(pool: Pool, tmp_path: Path) -> None:
    """As one did while another still connected to it for a group of the job's own: gloo failed there."""
    left = tmp_path / "left"
    _, done = pool.run(end_when, 2, str(left))
    assert float(left.read_text()) >= done


def test_raises_with_the_failing_ranks_traceback(pool: Pool) -> None:
    with pytest.raises(WorkerError, match=r"(?s)rank 1 of 2.*raise_on_rank_1.*KeyError: 'told apart'"):
        pool.run(raise_on_rank_1, 2)
    assert pool.run(total_of_ranks, 2, 0) == [(0, 1.0), (1, 1.0)]


def test_a_hang_ends_at_the_timeout_and_names_the_place(pool: Pool) -> None:
    with pytest.raises(WorkerError, match=r"(?s)1 of 2 ranks failed.*rank 1 of 2.*in hang_on_rank_1"):
        pool.run(hang_on_rank_1, 2, timeout=1)
    assert pool.run(total_of_ranks, 2, 0) == [(0, 1.0), (1, 1.0)]


def test_a_rank_that_does_not_leave_is_killed_with_its_stack(pool: Pool) -> None:
    """Without an end to the wait, one such rank holds up all tests for ever."""
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(WorkerError, match=r"(?s)1 of 2 ranks failed.*rank 1 of 2.*in _state_restored"),
    ):
        # For workers that have imported what they need to leave.
        pool.run(total_of_ranks, 2, 0)
        patch.setattr("tests.pool.LEAVING", 3.0)
        pool.run(hang_when_rank_1_leaves, 2)
    assert pool.run(total_of_ranks, 2, 0) == [(0, 1.0), (1, 1.0)]


def test_a_dead_process_is_named_and_replaced(pool: Pool) -> None:
    with pytest.raises(WorkerError, match=r"rank 1 of 2\nthe process died with exit code 7"):
        pool.run(die_on_rank_1, 2)
    assert pool.run(total_of_ranks, 2, 0) == [(0, 1.0), (1, 1.0)]


def test_global_state_is_put_back(pool: Pool) -> None:
    before = pool.run(see_traces, 1)
    pool.run(leave_traces, 1)
    assert pool.run(see_traces, 1) == before
    assert before[0][:2] == [None, __import__("torch").float32] and before[0][2:6] == ["cpu", False, False, False]


def test_a_mesh_of_an_earlier_job_is_forgotten(pool: Pool) -> None:
    found = [pool.run(norm_over_group, 2, groups) for groups in (3, 2, 1)]
    # Norms of norms in float32: the last digit depends on the processor. A mesh of other groups gives another number.
    assert [norm for norms in found for norm in norms] == pytest.approx([8.0] * 6, rel=1e-6)


def test_warnings_of_our_own_packages_are_errors(pool: Pool) -> None:
    pool.run(warn_in, 1, "torch.distributed.fsdp.wrap")
    with pytest.raises(WorkerError, match="UserWarning: beware"):
        pool.run(warn_in, 1, "fsdp_compat.plan")


def test_more_ranks_than_workers_is_refused(pool: Pool) -> None:
    with pytest.raises(ValueError, match="from 1 to 4"):
        pool.run(total_of_ranks, 5, 0)


SCRIPT = """
import os, sys
import torch.distributed as dist
import helper

dist.init_process_group("gloo")
assert dist.get_world_size() == int(os.environ["LOCAL_WORLD_SIZE"]) == 2
print(helper.NAME, dist.get_rank(), sys.argv[1:], os.environ.get("GREETING"), __name__)
print("warned", file=sys.stderr)
"""


def test_scripts_of_two_trees_do_not_meet(pool: Pool, tmp_path: Path) -> None:
    for tree in ("before", "after"):
        (tmp_path / tree).mkdir()
        (tmp_path / tree / "train.py").write_text(SCRIPT)
        (tmp_path / tree / "helper.py").write_text(f"NAME = {tree!r}\n")
    before = pool.run_script(tmp_path / "before/train.py", 2, ["--steps", "3"], prelude=greeting)
    after = pool.run_script(tmp_path / "after/train.py", 2)
    assert [out.stdout for out in before] == [f"before {rank} ['--steps', '3'] hello __main__\n" for rank in (0, 1)]
    assert [out.stdout for out in after] == [f"after {rank} [] None __main__\n" for rank in (0, 1)]
    assert after[0].stderr == "warned\n"


def test_a_failing_script_shows_its_output_and_traceback(pool: Pool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('got here', flush=True)\nraise ValueError('no data')\n")
    with pytest.raises(WorkerError, match=r"(?s)train.py\", line 2.*ValueError: no data.*got here"):
        pool.run_script(tmp_path / "train.py", 1)
    (tmp_path / "train.py").write_text("raise SystemExit('bad arguments')\n")
    with pytest.raises(WorkerError, match=r"train\.py exited with bad arguments"):
        pool.run_script(tmp_path / "train.py", 1)


HOOKS = "from torch.optim.optimizer import _global_optimizer_pre_hooks as hooks\n"
SHARDS = (
    "import fsdp_compat, torch\nimport torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
    "fsdp_compat.shard(torch.nn.Linear(2, 2), device_id=torch.device('cpu'))\n"
)


def test_programs_without_the_helpers_run_without_what_these_hook_into_optimizers(pool: Pool, tmp_path: Path) -> None:
    """A native program must not be helped by what an earlier one has imported, and a helped one must be."""
    seen = []
    for name, source in {"helped": SHARDS, "native": "", "helped again": SHARDS}.items():
        script = tmp_path / name.replace(" ", "_") / "train.py"
        script.parent.mkdir()
        script.write_text(f"{source}{HOOKS}print(len(hooks))\n")
        seen.append([int(printed.stdout) for printed in pool.run_script(script, 2)])
    helped, native, again = seen
    assert helped == again and 0 not in helped
    assert native == [0, 0]
