"""A ``python`` for tests that start training programs: torch is imported once for all of them, not once for each.

A program that takes a tenth of a second itself takes two to import torch, and two more for ``torch._dynamo`` at its
first optimizer step. ``PYTHON`` hands its arguments, environment, folder and open files to a server that has imported
both, and ends as the fork ends that the server makes for it (:mod:`tests.fork_server`). Signals go on to that.
"""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

#: Each has an order of sets and places in memory of its own, so that the ranks of a program do not all have the same.
SERVERS = 2
# Without the modules that socket and signal would import: it takes 10 ms.
_LAUNCHER = """#!{python} -ISE
import _signal, _socket, marshal, os, sys

names = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2")
forwarded = [getattr(_signal, name) for name in names]
# Until there is a process to forward them to.
_signal.pthread_sigmask(_signal.SIG_BLOCK, forwarded)
files = [int(each) for each in os.listdir("/proc/self/fd")]
files = [each for each in files if each < 3 or os.path.exists(f"/proc/self/fd/{{each}}") and os.get_inheritable(each)]
chosen = os.environ.pop("FORK_SERVER", None) or os.environ.get("RANK") or os.getpid()
server = _socket.socket(_socket.AF_UNIX)
server.connect("{folder}/" + str(int(chosen) % {servers}))
ignored = [int(each) for each in forwarded if _signal.getsignal(each) == _signal.SIG_IGN]
request = marshal.dumps((sys.argv, dict(os.environ), os.getcwd(), ignored, files))
rights = b"".join(each.to_bytes(4, sys.byteorder) for each in files)
server.sendmsg([len(request).to_bytes(8, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
server.sendall(request)
process = int.from_bytes(server.recv(8) or sys.exit("the server has failed"), "little")
if not process:
    _signal.pthread_sigmask(_signal.SIG_UNBLOCK, forwarded)
    os.execv("{python}", ["{python}", *sys.argv[1:]])
for each in files:
    # Whoever reads what the program writes waits for all who could.
    os.close(each)


def forward(number, frame):
    os.killpg(process, number)


for each in forwarded:
    if each not in ignored:
        _signal.signal(each, forward)
_signal.pthread_sigmask(_signal.SIG_UNBLOCK, forwarded)
status = int.from_bytes(server.recv(8) or os._exit(70), "little")
if os.WIFSIGNALED(status):
    if os.WTERMSIG(status) != _signal.SIGKILL:
        _signal.signal(os.WTERMSIG(status), _signal.SIG_DFL)
    os.kill(os.getpid(), os.WTERMSIG(status))
os._exit(os.waitstatus_to_exitcode(status))
"""


# A process that has asked for GPUs cannot be forked; other systems have not all that this is made of.
_FORKS = sys.platform == "linux" and os.environ.get("FSDP_COMPAT_TEST_DEVICE", "cpu") == "cpu"
#: Works once :func:`start` has been called.
PYTHON = f"{tempfile.gettempdir()}/forked-{os.getpid()}-{secrets.token_hex(4)}/python" if _FORKS else sys.executable


@functools.cache
def start() -> None:
    """Have ``PYTHON`` answered until this process ends; programs that have not ended by then are killed."""
    if not _FORKS:
        return
    # Not where this is imported: the ranks of the pool import it too, and end without what is done at exit.
    path = Path(PYTHON)
    path.parent.mkdir(mode=0o700)
    atexit.register(shutil.rmtree, path.parent, ignore_errors=True)
    path.write_text(_LAUNCHER.format(python=sys.executable, folder=path.parent, servers=SERVERS))
    path.chmod(0o755)
    # What one test has set for its programs is no affair of others.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "OMP_NUM_THREADS")}
    servers = [_server(number, environment | {"OPENBLAS_NUM_THREADS": "1"}) for number in range(SERVERS)]
    for server in servers:
        assert server.stdout is not None
        assert server.stdout.readline() == b"ready\n", "a server has failed and said why"


def _server(number: int, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(Path(PYTHON).with_name(str(number))))
    listener.listen(64)
    with listener:
        server = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(listener.fileno())],
            env=environment,
            pass_fds=[listener.fileno()],
            # It ends at the end of its input, which comes where this process is killed too.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
    atexit.register(server.communicate)
    return server
