"""The worker's side of :mod:`tests.pool`: serves jobs one after the other, and leaves nothing of one to the next."""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib
import io
import linecache
import os
import pickle
import random
import runpy
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

OWN_PACKAGES = ("fsdp_compat", "fsdp_rules", "fsdp_migrate")

Prelude = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class FunctionJob:
    """Call ``function(rank, world_size, *args)`` in a fresh group that meets at ``store``; see :mod:`tests.device`."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    store: str
    timeout: float

    def __call__(self, rank: int, world_size: int) -> Any:
        import torch.distributed as dist

        from tests.device import BACKEND

        store = dist.FileStore(self.store, world_size)
        limit = timedelta(seconds=self.timeout)
        dist.init_process_group(BACKEND, store=store, rank=rank, world_size=world_size, timeout=limit)
        # A rank that leaves while another still connects to it makes gloo fail there.
        dist.barrier()
        return self.function(rank, world_size, *self.args)


@dataclass(frozen=True)
class ScriptJob:
    """Run a training script as torchrun would; the result is what it printed, as (stdout, stderr)."""

    path: str
    argv: Sequence[str]
    prelude: Prelude | None
    port: int
    directory: str

    def __call__(self, rank: int, world_size: int) -> tuple[str, str]:
        script = Path(self.path)
        for name in ("RANK", "LOCAL_RANK"):
            os.environ[name] = str(rank)
        for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"):
            os.environ[name] = str(world_size)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(self.port))
        sys.argv = [str(script), *self.argv]
        sys.path.insert(0, str(script.parent))
        out, err = (Path(self.directory, f"{stream}-{rank}") for stream in ("stdout", "stderr"))
        try:
            with (
                _redirected(1, out),
                _redirected(2, err),
                _modules_forgotten(script.parent),
                _own_hooks(script.parent),
                self._prepared(),
            ):
                runpy.run_path(str(script), run_name="__main__")
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise RuntimeError(f"{script.name} exited with {stop.code}\n{_tail(out)}{_tail(err)}") from None
        except BaseException as error:
            raise RuntimeError(f"{script.name} raised {error!r}\n{_tail(out)}{_tail(err)}") from error
        return out.read_text(), err.read_text()

    def _prepared(self) -> AbstractContextManager[object]:
        return self.prelude() if self.prelude else contextlib.nullcontext()


def _tail(path: Path, limit: int = 4000) -> str:
    text = path.read_text(errors="replace")
    return f"--- {path.name}\n{text[-limit:]}\n" if text.strip() else ""


def serve(connection: Connection, rank: int, stacks: str) -> None:
    """Answer jobs from ``connection`` until it closes: what a job returned, and once all ranks have, its end.

    ``SIGUSR1`` and a crash write the stack to the file ``stacks``.
    """
    with Path(stacks).open("w") as stream:
        faulthandler.register(signal.SIGUSR1, file=stream, all_threads=False)
        faulthandler.enable(stream)
        importlib.import_module("torch.distributed")
        _keep_modules()
        connection.send_bytes(b"ready")
        while True:
            try:
                message = connection.recv_bytes()
            except EOFError:
                return
            try:
                with _state_restored():
                    connection.send_bytes(pickle.dumps((True, _packed(_value(message, rank)))))
                    # A rank that leaves its groups while another still connects to it makes gloo fail there.
                    connection.recv_bytes()
            except BaseException:
                connection.send_bytes(pickle.dumps((False, traceback.format_exc())))
            else:
                connection.send_bytes(pickle.dumps((True, b"")))


def _value(message: bytes, rank: int) -> Any:
    paths, world_size, payload = pickle.loads(message)
    sys.path[:] = paths
    _take_device(rank)
    return pickle.loads(payload)(rank, world_size)


class _ToCpu(pickle.Pickler):
    """Takes tensors to the CPU, where a test compares what its workers return, whatever device they computed on."""

    def reducer_override(self, value: Any) -> Any:
        tensor = getattr(sys.modules.get("torch"), "Tensor", ())
        return value.detach().cpu().__reduce_ex__(2) if isinstance(value, tensor) and value.is_cuda else NotImplemented


def _packed(value: Any) -> bytes:
    stream = io.BytesIO()
    _ToCpu(stream).dump(value)
    return stream.getvalue()


def _take_device(rank: int) -> None:
    # Before tests are imported: what they import from tests.device is this worker's device.
    if os.environ.get("FSDP_COMPAT_TEST_DEVICE") == "cuda":
        from benchmarks.gpus import take_gpu

        take_gpu(rank)


@contextlib.contextmanager
def _state_restored() -> Iterator[None]:
    import torch
    import torch.distributed as dist

    paths, cwd, environ, argv = list(sys.path), Path.cwd(), dict(os.environ), list(sys.argv)
    dtype, threads = torch.get_default_dtype(), torch.get_num_threads()
    rng, python_rng = torch.get_rng_state(), random.getstate()
    try:
        with warnings.catch_warnings():
            own = "|".join(OWN_PACKAGES)
            warnings.filterwarnings("error", module=rf"({own})(\.|$)")
            yield
    finally:
        backends = _backends()
        if dist.is_initialized():
            dist.destroy_process_group()
        _forget_meshes()
        gc.collect()
        backends.clear()
        _keep_modules()
        torch.set_default_dtype(dtype)
        torch.set_default_device(None)
        torch.set_num_threads(threads)
        torch.set_rng_state(rng)
        torch.set_grad_enabled(True)
        torch.use_deterministic_algorithms(False)
        random.setstate(python_rng)
        sys.path[:], sys.argv[:] = paths, argv
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(environ)


def _backends() -> list[object]:
    """What carries the groups of this process out. Freed after the groups, it waits for its threads as it should.

    Until torch 2.8 a group that is freed waits for gloo's threads with the interpreter's lock in its hands. One that is
    late still frees a tensor, needs the lock for that, and both wait for ever. A backend gives the lock away.
    """
    import torch
    import torch.distributed as dist

    groups = dist.distributed_c10d._world.pg_map
    device = torch.device("cpu")
    return [group._get_backend(device) for group in groups if device in group._device_types]


_kept_modules = 0


def _keep_modules() -> None:
    """Have no later collection look at the modules imported so far: of a short job's time that is more than half.

    After a collection, so that hardly anything else is there. A job that imports nothing new changes nothing.
    """
    global _kept_modules
    if len(sys.modules) > _kept_modules:
        _kept_modules = len(sys.modules)
        gc.freeze()


def _forget_meshes() -> None:
    """Empty torch's caches that are keyed by a mesh's shape: they would hand out an earlier job's dead groups."""
    if "torch.distributed.tensor" in sys.modules:
        debug = importlib.import_module("torch.distributed.tensor.debug")
        clears = [name for name in vars(debug) if name.startswith("_clear_") and name.endswith("sharding_prop_cache")]
        for name in clears:
            # One for all since 2.12 at the latest; in 2.10 one for the cache in Python and one for that in C++.
            getattr(debug, name)()
        if not clears:
            # Until 2.8 there is only the cache of one method of the one dispatcher, and no function that clears it.
            dispatcher = importlib.import_module("torch.distributed.tensor").DTensor._op_dispatcher
            dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
        redistribute = importlib.import_module("torch.distributed.tensor._redistribute")
        # Each planner keeps a mesh and the threads of its groups alive, which wake a hundred times a second.
        if hasattr(redistribute, "clear_redistribute_planner_cache"):
            redistribute.clear_redistribute_planner_cache()
    for cached in _caches(tuple(name for name in sys.modules if name.startswith("torch.distributed."))):
        cached.cache_clear()


@functools.lru_cache(maxsize=1)
def _caches(names: tuple[str, ...]) -> list[functools._lru_cache_wrapper[Any]]:
    """All of the modules of these names: looked for once, since they are thousands of objects."""
    found = []
    for module in filter(None, map(sys.modules.get, names)):
        for value in list(vars(module).values()):
            # By type(), because isinstance() asks the deprecated ones among these objects for their class.
            members = list(vars(value).values()) if issubclass(type(value), type) else []
            for member in (value, *members):
                cached = member.__func__ if type(member) is staticmethod else member
                if type(cached) is functools._lru_cache_wrapper:
                    found.append(cached)
    return found


@contextlib.contextmanager
def _redirected(descriptor: int, path: Path) -> Iterator[None]:
    """Send one of the process's standard streams to a file, for C++ and Python alike."""
    stream = sys.stdout if descriptor == 1 else sys.stderr
    stream.flush()
    kept = os.dup(descriptor)
    with path.open("wb") as target:
        os.dup2(target.fileno(), descriptor)
    try:
        yield
    finally:
        stream.flush()
        os.dup2(kept, descriptor)
        os.close(kept)


@contextlib.contextmanager
def _modules_forgotten(directory: Path) -> Iterator[None]:
    """Unload what was imported from ``directory``: the tree after a migration has modules of the same names."""
    importlib.invalidate_caches()
    linecache.clearcache()
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            if _lies_in(module, directory):
                del sys.modules[name]


@contextlib.contextmanager
def _own_hooks(directory: Path) -> Iterator[None]:
    """Take away what fsdp_compat hooks into all optimizers of a process, for programs in ``directory`` without it.

    A worker that has sharded with the helpers once would do for them what nobody does where they run.
    """
    if any("fsdp_compat" in path.read_text(errors="replace") for path in directory.rglob("*.py")):
        yield
        return
    optimizer = importlib.import_module("torch.optim.optimizer")
    tables = (optimizer._global_optimizer_pre_hooks, optimizer._global_optimizer_post_hooks)
    kept = [dict(table) for table in tables]
    for table in tables:
        table.clear()
    try:
        yield
    finally:
        for table, hooks in zip(tables, kept, strict=True):
            table.clear()
            table.update(hooks)


def _lies_in(module: Any, directory: Path) -> bool:
    file = getattr(module, "__file__", None)
    places = [file] if file else list(getattr(module, "__path__", ()))
    # As text: thousands of modules are asked after each script.
    return any(f"{place}{os.sep}".startswith(f"{directory}{os.sep}") for place in places)
