"""The server behind :data:`tests.forked.PYTHON`: it has imported torch, and forks for each program that is asked for.

The fork runs the program as a new interpreter would: it finds no module of torch in ``sys.modules``, imports go through
all finders (verify's recorder is one of them) and then give what was loaded before the fork. What a fork cannot give is
left to a new interpreter: options of Python itself, and variables that are read when it starts or torch is imported.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import importlib.abc
import importlib.machinery
import io
import itertools
import marshal
import os
import re
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

#: What programs of the tests import, and what torch imports at their first optimizer step.
LOADED = ("torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "torch.distributed.run")
#: Read when Python starts, or at torch's import, or by the libraries under it.
READ_EARLY = re.compile(
    r"PYTHON(?!PATH$|UNBUFFERED$)|PYTORCH_|TORCH_(?!NCCL_|SHOW_CPP_)|TORCHDYNAMO|TORCHINDUCTOR_(?!CACHE_DIR$)|"
    r"OMP_(?!NUM_THREADS$)|(GOMP|KMP|MKL|LD|LC)_|LANG|TZ$"
)


@dataclass(frozen=True)
class Program:
    """``words``: Python's arguments, its own path first. ``files``: open ones, by the numbers that it knows.

    ``ignored``: signals.
    """

    words: Sequence[str]
    environment: dict[str, str]
    directory: str
    ignored: Sequence[int]
    files: Mapping[int, int]

    @property
    def options(self) -> Sequence[str]:
        """Those of Python itself, without what names the program."""
        return list(itertools.takewhile(lambda word: word in ("-u", "-B"), self.words[1:]))

    def needs_new_interpreter(self) -> bool:
        """Whether a fork of this process cannot stand for a new one."""
        first = next(iter(self.words[1 + len(self.options) :]), "-")
        known = first in ("-m", "-c") or Path(self.directory, first).is_file()
        return not known or _read_early(self.environment) != _OWN


def _read_early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if READ_EARLY.match(name)}


# Before torch adds to it.
_OWN = _read_early(os.environ)


class _Loaded(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives torch as it was loaded before the fork, with all its modules, to the program's first import of it."""

    def __init__(self) -> None:
        self.modules = {name: each for name, each in sys.modules.items() if name.partition(".")[0] == "torch"}
        for name in self.modules:
            del sys.modules[name]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        # A program may have a torch of its own on its path.
        if spec is None or spec.origin != self.modules[name].__file__:
            return None
        spec.loader = self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.modules[spec.name]

    def exec_module(self, module: types.ModuleType) -> None:
        sys.meta_path.remove(self)
        sys.modules.update(self.modules)


class Server:
    """Forks for each program, and answers its process, 0 where it is to be run elsewhere, and then its status."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._fork)
        self._selector.register(sys.stdin, selectors.EVENT_READ, self._end)
        self._running: dict[int, tuple[int, socket.socket]] = {}
        self._program: Program | None = None
        self._ended = False

    def serve(self) -> Program | None:
        """In a fork, the program to run; ``None`` at the end of the server's input."""
        while not self._ended and self._program is None:
            for key, _ in self._selector.select():
                # What was closed since belongs to a program that has ended.
                if self._program is None and key.fd in self._selector.get_map():
                    key.data()
        return self._program

    def _fork(self) -> None:
        connection = self._listener.accept()[0]
        program = _received(connection)
        process = 0
        if not program.needs_new_interpreter():
            process = os.fork()
            if process == 0:
                self._program = program
                self._close(connection)
                return
            ended = os.pidfd_open(process)
            self._running[process] = ended, connection
            self._selector.register(ended, selectors.EVENT_READ, functools.partial(self._tell, process))
            # Nothing is sent here: it can be read once the launcher has gone, by a signal that it could not forward.
            self._selector.register(connection, selectors.EVENT_READ, functools.partial(self._leave, process))
        for file in program.files.values():
            os.close(file)
        _answer(connection, process)
        if process == 0:
            connection.close()

    def _close(self, connection: socket.socket) -> None:
        """Close all that is the server's, in a fork."""
        self._selector.close()
        for ended, other in self._running.values():
            os.close(ended)
            other.close()
        self._listener.close()
        connection.close()

    def _tell(self, process: int) -> None:
        ended, connection = self._running.pop(process)
        self._selector.unregister(ended)
        os.close(ended)
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        status = os.waitpid(process, 0)[1]
        _answer(connection, status)
        connection.close()

    def _leave(self, process: int) -> None:
        self._selector.unregister(self._running[process][1])
        _kill(process)

    def _end(self) -> None:
        self._ended = True
        for process in self._running:
            _kill(process)


def _answer(connection: socket.socket, number: int) -> None:
    # The launcher may have been killed meanwhile.
    with contextlib.suppress(OSError):
        connection.sendall(number.to_bytes(8, "little"))


def _kill(process: int) -> None:
    for kill in (os.kill, os.killpg):
        # Its group is made by itself.
        with contextlib.suppress(ProcessLookupError):
            kill(process, signal.SIGKILL)


def _received(connection: socket.socket) -> Program:
    length, files, _, _ = socket.recv_fds(connection, 8, 200)
    with connection.makefile("rb") as request:
        words, environment, directory, ignored, numbers = marshal.loads(request.read(int.from_bytes(length, "little")))
    return Program(words, environment, directory, ignored, dict(zip(numbers, files, strict=True)))


def run(program: Program, paths: Sequence[str]) -> None:
    """Run it in this fork; ``paths`` are those on which every interpreter here looks for modules."""
    os.setsid()
    # Out of the way of the numbers that they are to have.
    moved = {number: fcntl.fcntl(file, fcntl.F_DUPFD, 1 + max(program.files)) for number, file in program.files.items()}
    for file in program.files.values():
        os.close(file)
    for number, file in moved.items():
        os.dup2(file, number)
        os.close(file)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in program.ignored:
        signal.signal(number, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(program.environment)
    os.chdir(program.directory)
    sys.dont_write_bytecode |= "-B" in program.options
    sys.executable = program.words[0]
    sys.orig_argv = list(program.words)
    _open_streams("-u" in program.options or bool(os.environ.get("PYTHONUNBUFFERED")))
    tempfile.tempdir = None
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    loaded = sys.meta_path[0]
    assert isinstance(loaded, _Loaded)
    loaded.modules["torch"].default_generator.seed()
    if "OMP_NUM_THREADS" in os.environ:
        loaded.modules["torch"].set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __annotations__={})
    sys.path[:] = [*(each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each), *paths]
    sys.argv = list(program.words[1 + len(program.options) :])
    # As the module site does, before there is a program.
    sys.modules.pop("sitecustomize", None)
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    try:
        _execute(main)
    except Exception as error:
        error = error.with_traceback(_own(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)


def _execute(main: types.ModuleType) -> None:
    """Run what the words of ``sys.argv`` name as ``main``."""
    if sys.argv[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
        module = sys.argv.pop(1)
        runpy._run_module_as_main(module)  # type: ignore[attr-defined]
        return
    if sys.argv[0] == "-c":
        sys.path.insert(0, "")
        exec(compile(sys.argv.pop(1), "<string>", "exec", dont_inherit=True), main.__dict__)
        return
    path = Path.cwd() / sys.argv[0]
    sys.path.insert(0, str(path.resolve().parent))
    main.__file__ = str(path)
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", str(path))
    try:
        exec(compile(path.read_bytes(), path, "exec", dont_inherit=True), main.__dict__)
    finally:
        # Python does so too.
        del main.__file__


def _own(trace: types.TracebackType | None) -> types.TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _open_streams(unbuffered: bool) -> None:
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        before = getattr(sys, name)
        raw = io.FileIO(number, "rb" if number == 0 else "wb", closefd=False)
        raw.name = f"<{name}>"
        buffer = io.BufferedReader(raw) if number == 0 else raw if unbuffered else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer,
            encoding=before.encoding,
            errors=before.errors,
            line_buffering=not unbuffered and (number == 2 or os.isatty(number)),
            write_through=unbuffered,
        )
        stream.mode = "r" if number == 0 else "w"
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def main(listener: socket.socket) -> None:
    """Serve until the input ends."""
    paths = sys.path[1:]
    for name in LOADED:
        importlib.import_module(name)
    # To be run with -m, it may not have been imported.
    del sys.modules["torch.distributed"].run, sys.modules["torch.distributed.run"]
    threads = list(Path("/proc/self/task").iterdir())
    assert len(threads) == 1, f"{len(threads)} threads, of which a fork has only one"
    sys.meta_path.insert(0, _Loaded())
    # Collections in the forks do not copy what all share.
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    program = Server(listener).serve()
    if program is not None:
        run(program, paths)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
