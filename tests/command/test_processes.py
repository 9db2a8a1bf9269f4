"""Work over several processes: order, deaths, and what is left behind (nothing)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fsdp_migrate.pipeline import pool as pool_module
from fsdp_migrate.pipeline.pool import MIN_BYTES, MIN_ITEMS, Pool, worker_count

#: Ends the test where a process never does; no test waits so long for one that ends.
HANGS = 600
# Workers say that they have an item, then wait for a byte that only the test can give.
BLOCKED = """
import os, signal, sys
from types import SimpleNamespace
from fsdp_migrate.pipeline import engine
from fsdp_migrate.pipeline import pool
from fsdp_migrate.cli import main
from fsdp_rules.verdict.result import Unchanged

# A shell starts what it puts in the background deaf to Ctrl-C, and so are the children of that.
signal.signal(signal.SIGINT, signal.default_int_handler)

class Blocking:
    def names_fsdp1(self, data): return True
    def is_migrating(self, project): return False
    def must_migrate(self, facts): return False
    def has_marker(self, data): return True
    def index(self, path, data): return path
    def build(self, facts, flags, batchnorm): return list(facts)
    def agree(self, project, files, settings_of, unread): return SimpleNamespace(project=project, prepared={})
    def has_both(self, project): return False
    def left_whole(self, project, findings): return None
    def released(self, project, before, after): return project, frozenset()
    def rewrite(self, data, path, project, settings, prepared):
        os.write(1, b"ready\\n")
        os.read(int(sys.argv[1]), 1)
        return Unchanged()

engine.RulesEngine = Blocking
pool.MIN_ITEMS = pool.MIN_BYTES = 0
os.cpu_count = lambda: 2
sys.exit(main(["rewrite", "."]))
"""


def test_few_or_small_files_stay_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    large = MIN_BYTES // MIN_ITEMS
    assert worker_count(None, [large] * MIN_ITEMS) == 1
    assert worker_count(None, [1] * 1000) == 1
    assert worker_count(None, [large] * 100) == 8
    assert worker_count(3, [large] * 100) == 3
    assert worker_count(100, [large] * 100) == 8
    assert worker_count(1, [large] * 100) == 1


@pytest.mark.parametrize("jobs", [1, 3])
def test_values_are_in_the_order_of_the_items(jobs: int) -> None:
    done: list[None] = []
    pool = Pool(task=lambda item: item * 10, died=lambda item: -1, jobs=jobs)
    assert pool.run(list(range(7)), [6, 2, 0, 1, 3, 5, 4], lambda: done.append(None)) == [0, 10, 20, 30, 40, 50, 60]
    assert len(done) == 7
    assert pool.run([], [], lambda: done.append(None)) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_both_ways_to_start_a_process(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "START_METHOD", method)
    assert Pool(task=str.upper, died=repr, jobs=2).run(["a", "b", "c"], [2, 1, 0], lambda: None) == ["A", "B", "C"]


def test_every_process_may_die() -> None:
    pool = Pool(task=lambda item: os._exit(1), died=lambda item: f"lost {item}", jobs=2)
    assert pool.run(["a", "b", "c"], [0, 1, 2], lambda: None) == ["lost a", "lost b", "lost c"]


@pytest.fixture
def blocked(tmp_path: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A run whose two workers hold one file each, and the descriptor that lets them go on."""
    for number in range(4):
        (tmp_path / f"m{number}.py").write_text("x = 1\n")
    reader, writer = os.pipe()
    command = [sys.executable, "-c", BLOCKED, str(reader)]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=[reader], start_new_session=True
    )
    os.close(reader)
    assert process.stdout is not None
    for _ in range(2):
        assert process.stdout.readline() == b"ready\n"
    return process, writer


def test_an_interrupt_ends_all_processes_with_one_line(blocked: tuple[subprocess.Popen[bytes], int]) -> None:
    process, writer = blocked
    os.killpg(process.pid, signal.SIGINT)
    # The pipes close only when the last process that holds them is gone.
    _, err = process.communicate(timeout=HANGS)
    os.close(writer)
    assert process.returncode == 130
    assert err.decode().split() == ["interrupted:", "nothing", "was", "written"]


def test_workers_do_not_outlive_their_parent(blocked: tuple[subprocess.Popen[bytes], int]) -> None:
    process, writer = blocked
    process.kill()
    os.write(writer, b"xx")
    _, err = process.communicate(timeout=HANGS)
    os.close(writer)
    assert err == b""


# Sends itself a signal in the middle of a write.
STOPPED = """
import os, signal, sys
number = int(sys.argv[1])
sync = os.{step}
left = {calls}

def stopped(*given):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), number)
    return sync(*given)

os.{step} = stopped
if sys.argv[2] == "ignored":
    signal.signal(number, signal.SIG_IGN)
sys.argv[1:] = {words}
from fsdp_migrate.cli import entry_point
entry_point()
"""
WRITES = {
    "what undo needs": ("fsync", 1, ["rewrite", "."]),
    "a rewrite": ("fsync", 3, ["rewrite", "."]),
    "before the exchange": ("replace", 3, ["rewrite", "."]),
    "a report": ("fsync", 1, ["check", "--output", "out.txt", "."]),
}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("write", WRITES)
def test_a_signal_leaves_no_temporary_file(write: str, number: signal.Signals, tmp_path: Path) -> None:
    step, calls, words = WRITES[write]
    source = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
    (tmp_path / "a.py").write_text(source)
    command = [sys.executable, "-c", STOPPED.format(step=step, calls=calls, words=words), str(int(number))]
    ended = subprocess.run([*command, "met"], cwd=tmp_path, capture_output=True)
    assert ended.returncode == 128 + number
    assert b"Traceback" not in ended.stderr
    assert [*tmp_path.rglob("*.tmp")] == []
    assert (tmp_path / "a.py").read_text() == source
    subprocess.run([*command, "ignored"], cwd=tmp_path, capture_output=True)
    assert (tmp_path / "a.py").read_text() != source or (tmp_path / "out.txt").exists()


@pytest.mark.parametrize("module", ["click", "fsdp_migrate.cli", "fsdp_migrate.pipeline.run"])
def test_an_interrupt_during_the_start_is_one_line(module: str, tmp_path: Path) -> None:
    """Whichever module is just being read."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n\n\n"
        "class Meets:\n    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {module!r}:\n            os.kill(os.getpid(), signal.SIGINT)\n\n\n"
        "sys.meta_path.insert(0, Meets())\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "fsdp_migrate", "rewrite", "."],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
    )
    assert (ended.returncode, ended.stderr.strip()) == (130, b"interrupted: nothing was written")
