"""A program that is forked is the program that a new interpreter runs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked
from tests.forked import PYTHON

pytestmark = pytest.mark.skipif(sys.executable == PYTHON, reason="nothing is forked here")

#: Says what a program sees of its interpreter, and ends with an error.
PROGRAM = """
import atexit, os, signal, sys, threading

print("torch" in sys.modules, __name__, globals().get("__file__"), sys.argv, sys.path, sys.warnoptions)
import torch
import torch.distributed.run
print(torch.get_num_threads(), torch.nn is sys.modules["torch.nn"])
print(os.getcwd(), os.environ.get("WORD"), sys.stdin.read(), sorted(os.listdir("/proc/self/fd"))[-1:])
for each in (sys.stdin, sys.stdout, sys.stderr):
    print(each.name, each.mode, each.encoding, each.errors, each.line_buffering, each.write_through)
print(threading.current_thread().name, signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM))
atexit.register(lambda: print("the end", "__file__" in globals()))


class Step:
    count: int = 0


print(Step.__module__, Step.__annotations__, torch.ones(3).sum())
print("to stderr", file=sys.stderr)
threading.Thread(target=lambda: print("a thread of its own")).start()
Step().missing
"""


@pytest.fixture(autouse=True)
def _started() -> None:
    forked.start()


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "under").mkdir()
    path = tmp_path / "under" / "program.py"
    path.write_text(PROGRAM)
    return path


def ended(python: str, *words: str, **environment: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [python, *words], env=os.environ | environment, input="the input", capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("under/program.py", "-u", "x"), {"WORD": "known", "OMP_NUM_THREADS": "1"}),
        (("-u", "-B", "under/program.py"), {"PYTHONPATH": "/nowhere"}),
        (("-m", "under.program", "-c"), {"PYTHONUNBUFFERED": ""}),
        (("-c", PROGRAM, "x y"), {}),
        (("-c", "import sys; sys.exit('no more')"), {}),
        (("-c", "raise SystemExit(300)"), {}),
        (("-c", "this is no Python"), {}),
        (("missing.py",), {}),
    ],
    ids=lambda value: " ".join(value)[:20] if isinstance(value, tuple) else "",
)
def test_it_sees_and_says_the_same(program: Path, words: tuple[str, ...], environment: dict[str, str]) -> None:
    code, out, err = ended(PYTHON, *words, **environment)
    assert (code, out, err.replace(PYTHON, sys.executable)) == ended(sys.executable, *words, **environment)


def test_it_is_forked(program: Path) -> None:
    assert ended(PYTHON, "-c", "import sys; print(sys.executable)")[1] == f"{PYTHON}\n"
    parents = "import os; print(open(f'/proc/{os.getppid()}/cmdline').read())"
    assert "fork_server.py" in ended(PYTHON, "-c", parents)[1]


HOOK = """
import importlib.util
import sys

class After:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec(name)
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), print("torch came", "torch" in sys.modules))
            return spec

sys.meta_path.insert(0, After())
print("first", hasattr(sys, "argv"), sys.modules["__main__"].__dict__.get("__file__"))
"""


def test_hooks_of_the_environment_see_torch_come(program: Path) -> None:
    folder = program.parent / "hooks"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HOOK)
    words = ("-c", "print('second'); import torch.nn; print(torch.nn.Linear(1, 1))")
    code, out, err = ended(PYTHON, *words, PYTHONPATH=str(folder))
    assert (code, out.split("\n")[1:3], err) == (0, ["second", "torch came True"], "")
    assert (code, out, err) == ended(sys.executable, *words, PYTHONPATH=str(folder))


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("-c", "print(hash('x'))"), {"PYTHONHASHSEED": "7"}),
        (("-Werror", "-c", "import sys; print(sys.warnoptions)"), {}),
        (("-c", "import torch; print(torch.__file__)"), {"PYTHONPATH": "own"}),
    ],
    ids=["hash", "option", "own torch"],
)
def test_what_a_fork_cannot_give(program: Path, words: tuple[str, ...], environment: dict[str, str]) -> None:
    Path("own").mkdir()
    Path("own", "torch.py").touch()
    assert ended(PYTHON, *words, **environment) == ended(sys.executable, *words, **environment)


def test_programs_differ_by_chance(program: Path) -> None:
    """As new interpreters do, one by one and rank by rank."""
    drawn = "import random, numpy, torch; print(random.random(), numpy.random.random(), torch.rand(1))"
    runs = [ended(PYTHON, "-c", drawn, RANK="0")[1].split() for _ in range(3)]
    assert [len(set(each)) for each in zip(*runs, strict=True)] == [3, 3, 3]
    assert len({ended(PYTHON, "-c", "print(hash('x'))", RANK=str(rank))[1] for rank in range(2)}) == 2


WAITING = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(5))
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.mark.parametrize(
    ("sent", "code"), [(signal.SIGTERM, 5), (signal.SIGUSR1, -signal.SIGUSR1), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_signals_reach_it(sent: signal.Signals, code: int) -> None:
    with subprocess.Popen([PYTHON, "-c", WAITING], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert int(process.stdout.readline()) != process.pid
        process.send_signal(sent)
        assert process.wait(60) == code
        # Its end of the pipe is closed: it is gone too.
        assert process.stdout.read() == ""


def test_what_its_parent_ignores_it_ignores() -> None:
    ask = "import signal; print([signal.getsignal(each) for each in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)])"
    command = f"trap '' INT HUP; exec \"$0\" -c '{ask}'"
    forked_, new = (
        subprocess.run(["sh", "-c", command, python], capture_output=True, text=True, check=True)
        for python in (PYTHON, sys.executable)
    )
    assert forked_.stdout == new.stdout
    assert forked_.stdout.count("SIG_IGN") == 2


def test_its_own_signal_is_the_end_of_both() -> None:
    assert ended(PYTHON, "-c", "import os; os.abort()")[0] == -signal.SIGABRT


def test_files_are_handed_on_by_their_numbers() -> None:
    reader, writer = os.pipe()
    with os.fdopen(reader) as answers:
        subprocess.run([PYTHON, "-c", f"import os; os.write({writer}, b'hello')"], pass_fds=[writer], check=True)
        os.close(writer)
        assert answers.read() == "hello"
