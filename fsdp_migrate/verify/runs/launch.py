"""Starts one run of the program and waits for it."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fsdp_migrate.verify.recorder.orders import Orders
from fsdp_migrate.verify.runs.rank_stacks import stacks

INJECTED = Path(__file__).resolve().parents[1] / "recorder" / "inject"
#: Only the wheel has it, where scripts/wheel_names.py puts it.
HELPERS = Path(__file__).resolve().parents[1] / "helpers"
_SECONDS_BETWEEN_LOOKS = 0.2
_RANK = re.compile(r"^\[rank\d+\]:\s?", re.MULTILINE)
#: How gloo, NCCL and the store say that another rank has ended.
_OTHERS = re.compile(
    r"Connection (reset|closed|refused)|Broken pipe|remote process exited|failed to connect|"
    r"DistStoreError|DistBackendError|DistNetworkError|Timed out waiting"
)
_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in ')
#: How torch says that there is no GPU.
_GPU = re.compile(
    r"Found no NVIDIA driver|not compiled with CUDA|no GPUs found|non-CPU accelerator|accelerator when none|"
    r"accelerator device when none|Distributed package doesn't have NCCL|No CUDA GPUs are available|"
    r"CUDA is not available|CUDA driver|needs? a GPU|`?sync_module_states=True`?.*GPU|sync_module_states.*CPU|"
    r"names an accelerator|No backend type associated with device type cuda|"
    r"module 'torch\._C' has no attribute '_cuda|accelerator support: None|Cannot access accelerator|"
    r"Tried to instantiate dummy base class|Attempting to deserialize object on a CUDA device"
)
#: What is called while a run goes: seconds, steps so far, and the last line that it printed.
Watch = Callable[[float, int, str], None]


class CannotRun(Exception):
    """A run could not be started, or did not come to its end; the message shows what it printed."""


@dataclass(frozen=True)
class Run:
    """One run: ``command`` in ``directory``; ``remap``: a tree on PYTHONPATH, and its copy to be taken instead."""

    side: str
    command: tuple[str, ...]
    directory: Path
    log: Path
    orders: Orders
    remap: tuple[Path, Path] | None = None


def run(wanted: Run, timeout: float | None, watch: Watch) -> float:
    """Run it; the seconds that it took. Raises :class:`CannotRun` with the program's own traceback."""
    environment = os.environ | wanted.orders.environment() | {"PYTHONPATH": _python_path(wanted)}
    environment |= {"FSDP_MIGRATE_HELPERS": _helpers()}
    if wanted.orders.cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ""
    wanted.log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with wanted.log.open("wb") as stream:
        try:
            process = subprocess.Popen(
                wanted.command,
                cwd=wanted.directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise CannotRun(f'the run "{wanted.side}" could not be started: {error}') from error
        try:
            code = _wait(process, wanted, began, timeout, watch)
        except BaseException:
            _end(process)
            raise
    if code != 0:
        told = own_traceback(wanted.log)
        raise CannotRun(f'the run "{wanted.side}" failed with exit code {code}:\n{told}{_asks_for_gpu(told, wanted)}')
    return time.monotonic() - began


def _wait(process: subprocess.Popen[bytes], wanted: Run, began: float, timeout: float | None, watch: Watch) -> int:
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_SECONDS_BETWEEN_LOOKS)
        seconds = time.monotonic() - began
        watch(seconds, _steps(Path(wanted.orders.out)), _last_line(wanted.log))
        if timeout is not None and seconds > timeout:
            stood = "".join(f"\n  {line}" for line in stacks(Path(wanted.orders.out)))
            _end(process)
            told = own_traceback(wanted.log) + (f"\nits ranks are at:{stood}" if stood else "")
            raise CannotRun(f'the run "{wanted.side}" did not end within {timeout:g} seconds; it printed last:\n{told}')


def _end(process: subprocess.Popen[bytes]) -> None:
    """The launcher and all ranks: they are one session. Windows has none, there it is the launcher alone."""
    if not hasattr(os, "killpg"):
        process.kill()
        process.wait()
        return
    for sign, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)
            return


def _python_path(wanted: Run) -> str:
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if wanted.remap is not None:
        original, copy = wanted.remap
        entries = [_remapped(entry, original, copy) for entry in entries]
    return os.pathsep.join([str(INJECTED), *entries])


def _remapped(entry: str, original: Path, copy: Path) -> str:
    path = Path(entry)
    if path.is_absolute() and path.resolve().is_relative_to(original):
        return str(copy / path.resolve().relative_to(original))
    return entry


def _helpers() -> str:
    """The folder of ``fsdp_compat``: in the wheel one that no other program imports from."""
    if HELPERS.is_dir():
        return str(HELPERS)
    spec = importlib.util.find_spec("fsdp_compat")
    return str(Path(spec.origin).parents[1]) if spec is not None and spec.origin else ""


def _steps(recording: Path) -> int:
    try:
        return (recording / "rank-0.jsonl").read_bytes().count(b'\n{"kind":"step"')
    except FileNotFoundError:
        return 0


def _last_line(log: Path) -> str:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - 2000))
        lines = stream.read().decode("utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


#: What starts ranks, and raises when one of them has failed by itself.
_STARTER = re.compile(r"torch/distributed/(elastic|run\.py)|multiprocessing\.spawn\.Process(Raised|Exited)Exception")
#: Lines of torchrun, and the one by which it begins to tell of a rank that failed.
_LAUNCHER = re.compile(r"[EIW]\d{4} .* torch/distributed/")
_FAILED = re.compile(r"E\d{4} .* torch/distributed/elastic/")
_EXIT = re.compile(r"exitcode +: \d")
_PRINTED_LAST = 8
_TRACEBACK = "Traceback (most recent call last)"


def own_traceback(log: Path, longest: int = 60) -> str:
    """The first traceback that the program printed, else its last lines.

    One that only says that another rank has gone comes after those of ranks that failed by themselves, and after what
    torchrun names as the first failure. One that ends where another begins is of a rank that was stopped while it
    printed, and comes after whole ones.
    """
    lines = _RANK.sub("", log.read_text(encoding="utf-8", errors="replace")).splitlines()
    starts = [number for number, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    blocks: list[list[str]] = []
    for start in starts:
        end = next((n for n in range(start + 1, len(lines)) if lines[n] and not lines[n].startswith(" ")), start)
        block = lines[start : end + 1]
        if not any(_STARTER.search(line) for line in block):
            blocks.append(block)
    alone = [block for block in blocks if not _OTHERS.search(block[-1])]
    alone.sort(key=lambda block: block[-1].startswith(_TRACEBACK))
    return "\n".join((*alone, *_root_cause(lines), *blocks, lines)[0][-longest:])


def _asks_for_gpu(told: str, wanted: Run) -> str:
    """What to do where the program fails since it asks for a GPU, with the line of the program that asks."""
    found = _GPU.search(told)
    if found is None:
        return ""
    lines = [match for match in _LINE.finditer(told) if not _is_foreign(match["file"])]
    where = f"{lines[-1]['file']}:{lines[-1]['line']}" if lines else "the program"
    where = where.removeprefix(f"{wanted.directory.resolve()}{os.sep}")
    said = f"{where} needs a GPU, and torch finds none here"
    if wanted.orders.cpu:
        return f"\n{said}; --cpu has no replacement for it: run it on a machine with GPUs"
    return f"\n{said}: pass --cpu to use the CPU and gloo, or run it on a machine with GPUs"


def _is_foreign(file: str) -> bool:
    """Whether a file of a traceback is none of the program: installed, or this recorder."""
    return "-packages" in file or file.startswith(str(INJECTED.parent))


def _root_cause(lines: list[str]) -> list[list[str]]:
    """What torchrun says of the rank that failed first, since a signal and an exit leave no traceback.

    Above it what the ranks printed last, as argparse does, unless a signal ended the rank.
    """
    start = next((number for number, line in enumerate(lines) if line.startswith("Root Cause")), len(lines))
    found = list(itertools.takewhile(lambda line: not line.startswith("====="), lines[start:]))
    exits = any(_EXIT.search(line) for line in found)
    printed = itertools.takewhile(lambda line: not _FAILED.match(line), lines) if exits else ()
    last = [line for line in printed if line.strip() and not _LAUNCHER.match(line)][-_PRINTED_LAST:]
    return [[*last, *found]] if found else []
