"""Run PyTorch's own tests of FSDP1 on the CPU, under FSDP1 itself or with fsdp_compat in its place.

    python scripts/torch_tests.py --tests PYTORCH/test/distributed/fsdp --implementation fsdp_compat test_wrap.py

This repository holds none of PyTorch's tests: ``--tests`` names the folder of a PyTorch checkout that does. They are
written for GPUs; each file is read with its devices changed to the CPU, and runs on gloo in forked processes. What
fails under FSDP1 too is no measure of fsdp_compat here.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import re
import signal
import sys
import tempfile
import time
import types
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp.sharded_grad_scaler
import torch.testing._internal.common_distributed as common_distributed
import torch.testing._internal.common_fsdp as common_fsdp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

ROOT = Path(__file__).resolve().parent.parent
WORLD_SIZE = 2
MAX_WORLD_SIZE = 4
CPU = torch.device("cpu")

# What a GPU test says about devices, in its source, and what it says instead. The last are names of older versions.
REWRITES = (
    (r"torch\.device\(\s*f?[\"']cuda[^)\"']*[\"']\s*(,[^()]*(\(\))?)?\)", 'torch.device("cpu")'),
    (r"torch\.cuda\.current_device\(\)|torch\.accelerator\.current_device_index\(\)", 'torch.device("cpu")'),
    (r"f?[\"']cuda(:[^\"']*)?[\"']", '"cpu"'),
    (r"\.to\((self\.)?rank\)", '.to("cpu")'),
    (r"(\bdevice(_id)?=)(self\.)?rank\b", r'\1torch.device("cpu")'),
    (r"\bnot TEST_(CUDA|MULTIGPU)\b", "False"),
    (r"\bCUDAInitMode\b", "DEVICEInitMode"),
    (r"\bCUDA_(BEFORE|AFTER|NEVER)\b", r"DEVICE_\1"),
    (r"\bcuda_init_mode\b", "device_init_mode"),
)

_Test = TypeVar("_Test", bound=Callable[..., Any])
_size = WORLD_SIZE
_init_process_group = dist.init_process_group


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one test went: ``outcome`` is pass, fail or skip; ``error`` the last line of what it raised."""

    file: str
    test: str
    implementation: str
    outcome: str
    seconds: float
    error: str
    output: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+", help="names of test files in the folder")
    parser.add_argument("--tests", type=Path, required=True, help="PyTorch's test/distributed/fsdp")
    parser.add_argument("--implementation", choices=("fsdp1", "fsdp_compat"), required=True)
    parser.add_argument("-k", action="append", default=[], help="only tests whose Class.name contains this")
    parser.add_argument("--json", type=Path, help="write the outcomes there")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one test")
    parser.add_argument("--verbose", action="store_true", help="print what a failing test printed")
    given = parser.parse_args(arguments)
    prepare(given.implementation, given.timeout)
    outcomes = []
    for file in given.files:
        for outcome in run_file(given.tests / file, given.implementation, given.k, given.timeout):
            seconds = f"{outcome.seconds:5.1f}s"
            print(f"{outcome.outcome} {seconds} {outcome.file} {outcome.test}  {outcome.error}", flush=True)
            if given.verbose and outcome.outcome == "fail":
                print(outcome.output)
            outcomes.append(outcome)
    counts = {kind: sum(outcome.outcome == kind for outcome in outcomes) for kind in ("pass", "fail", "skip")}
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if given.json is not None:
        rows = [{**dataclasses.asdict(outcome), "output": outcome.output[-4000:]} for outcome in outcomes]
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return int(counts["fail"] > 0)


def prepare(implementation: str, timeout: float) -> None:
    """Make torch's test helpers run on the CPU, and put ``implementation`` where tests import FSDP1 from."""
    warnings.simplefilter("ignore")
    helpers: Any = common_fsdp
    distributed: Any = common_distributed
    distributed.skip_if_lt_x_gpu = needs_ranks
    distributed.get_timeout = lambda _: timeout - 5
    distributed.MultiProcessTestCase._spawn_processes = _fork_processes
    # In processes all of them, since threads share what is global, as FSDP's environment variables are.
    helpers.FSDPTestContinuous = type("FSDPTestContinuous", (common_fsdp.FSDPTest,), {})
    helpers.FSDPTestMultiThread = type("FSDPTestMultiThread", (common_fsdp.FSDPTest,), {})
    helpers.DummyProcessGroup = _group_without_peers
    torch.distributed.init_process_group = _init_in_place_of_no_peers
    helpers.FSDPTest.world_size = property(lambda _: _size)
    helpers.DEVICE_COUNT = WORLD_SIZE
    cuda: Any = torch.cuda
    accelerator: Any = torch.accelerator
    cuda.device_count = accelerator.device_count = lambda: _size
    cuda.set_device = cuda.synchronize = cuda.empty_cache = accelerator.set_device_index = _do_nothing
    # FSDP1's offload waits for its stream, which the CPU's stand-in for one cannot do.
    stream: Any = torch.cpu.Stream
    stream.synchronize = _do_nothing
    module_class: Any = nn.Module
    tensor_class: Any = torch.Tensor
    module_class.cuda = tensor_class.cuda = tensor_class.pin_memory = lambda self, *_, **__: self
    _patch_init(DistributedDataParallel, _without_device_ids)
    if implementation == "fsdp1":
        _patch_init(torch.distributed.fsdp.FullyShardedDataParallel, _on_cpu)
    else:
        _install_compat()


def _init_in_place_of_no_peers(*args: Any, **kwargs: Any) -> None:
    if dist.is_initialized() and dist.get_backend() == "fake":
        dist.destroy_process_group()
    _init_process_group(*args, **kwargs)


def _group_without_peers(rank: int, size: int) -> Any:
    """Stands for ``DummyProcessGroup``: a group that torch accepts as one, whose collectives do nothing."""
    if not dist.is_initialized():
        _init_process_group("fake", rank=rank, world_size=MAX_WORLD_SIZE, store=FakeStore())
    return dist.new_group(list(range(size)))


def _install_compat() -> None:
    sys.path.insert(0, str(ROOT / "shim"))
    import fsdp_compat

    model_class: Any = common_fsdp.FSDPTestModel
    model_class.__setattr__ = _set_with_methods
    model_class._assert_state = _do_nothing
    face: Any = type(fsdp_compat.FSDP)
    original = face.__call__
    face.__call__ = lambda cls, *args, **kwargs: original(cls, *args, **_on_cpu(kwargs))
    for module in (dist.fsdp, dist.fsdp.fully_sharded_data_parallel, dist.fsdp.sharded_grad_scaler, common_fsdp):
        for name, value in (
            ("FSDP", fsdp_compat.FSDP),
            ("FullyShardedDataParallel", fsdp_compat.FSDP),
            ("ShardedGradScaler", fsdp_compat.ShardedGradScaler),
        ):
            if hasattr(module, name):
                setattr(module, name, value)


def _set_with_methods(self: Any, name: str, value: Any) -> None:
    # A child called "module" hides FSDP's attribute of that name, of which tests ask for what the model itself has.
    nn.Module.__setattr__(self, name, value)
    if name == "module":
        asked = (method for method in ("get_input", "get_loss", "run_backward") if not hasattr(value, method))
        value.__dict__.update({method: getattr(self, method) for method in asked})


def _on_cpu(arguments: dict[str, Any]) -> dict[str, Any]:
    given = arguments.get("device_id")
    return {**arguments, "device_id": CPU} if given is None or isinstance(given, int) else arguments


def _without_device_ids(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if name not in ("device_ids", "output_device")}


def _patch_init(cls: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    original = cls.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **change(kwargs))

    cls.__init__ = init


def needs_ranks(count: int, **_: object) -> Callable[[_Test], _Test]:
    """Stands for ``skip_if_lt_x_gpu``: the test runs on as many processes, or is skipped above the maximum."""

    def decorate(test: _Test) -> _Test:
        if count > MAX_WORLD_SIZE:
            return unittest.skip(f"needs {count} ranks")(test)
        test.__dict__["ranks"] = max(count, WORLD_SIZE)
        return test

    return decorate


def _do_nothing(*_: object) -> None:
    return None


def _fork_processes(self: Any) -> None:
    # Forked, since a spawned process would import torch anew, and would know nothing of the changes made here.
    self._start_processes(multiprocessing.get_context("fork").Process)


def run_file(path: Path, implementation: str, patterns: Sequence[str], timeout: float) -> Iterator[Outcome]:
    """Run the tests of one file whose ``Class.test`` contains one of ``patterns`` (all, if there are none)."""
    module = load(path)
    for case in _cases(unittest.defaultTestLoader.loadTestsFromModule(module)):
        name = case.id().removeprefix(f"{module.__name__}.")
        if not patterns or any(pattern in name for pattern in patterns):
            start = time.monotonic()
            outcome, error, output = run_case(case, timeout)
            yield Outcome(path.name, name, implementation, outcome, round(time.monotonic() - start, 1), error, output)


def load(path: Path) -> types.ModuleType:
    """Import a test file with its devices changed to the CPU."""
    source = path.read_text()
    for pattern, replacement in REWRITES:
        source = re.sub(pattern, replacement, source)
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    sys.modules[path.stem] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    return module


def _cases(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield from _cases(part)
        else:
            yield part


def run_case(case: unittest.TestCase, timeout: float) -> tuple[str, str, str]:
    """Run one test in a forked process: its outcome, the last line of its error, and what it printed."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryFile() as output:
        process = context.Process(target=_run_here, args=(case, sender, output.fileno()))
        process.start()
        sender.close()
        try:
            outcome, error = receiver.recv() if receiver.poll(timeout) else ("fail", f"no end within {timeout} s")
        except EOFError:
            outcome, error = "fail", "the process died"
        if process.pid is not None:
            _kill_group(process.pid)
        process.join()
        output.seek(0)
        printed = output.read().decode(errors="replace")
    return outcome, _last_line(error) if outcome == "fail" else error, f"{printed}\n{error}"


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _run_here(case: Any, sender: Connection, output: int) -> None:
    global _size
    os.setsid()
    os.dup2(output, 1)
    os.dup2(output, 2)
    _size = getattr(getattr(type(case), case._testMethodName), "ranks", WORLD_SIZE)
    _size = min(max(_size, getattr(case, "world_size", _size)), MAX_WORLD_SIZE)
    common_fsdp.DEVICE_COUNT = _size
    result = unittest.TestResult()
    case.run(result)
    problems = [text for _, text in [*result.errors, *result.failures]]
    if problems:
        sender.send(("fail", "\n".join(problems)))
    elif result.skipped:
        sender.send(("skip", result.skipped[0][1]))
    else:
        sender.send(("pass", ""))


def _last_line(text: str) -> str:
    """What was raised, by the last line that names an exception: C++ adds its stack after that."""
    lines = [line for line in text.splitlines() if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Exit|Warning)\b", line)]
    own = [line for line in lines if not re.match(r"RuntimeError: Process \d", line)]
    return (own or lines or text.strip().splitlines() or [""])[-1][:300]


if __name__ == "__main__":
    sys.exit(main())
