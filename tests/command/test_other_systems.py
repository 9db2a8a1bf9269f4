"""What Windows lacks is not reached: the command runs with the names of POSIX removed, and paths may have backslashes.

No test runs on Windows or macOS themselves. ``verify`` and ``preflight`` start training programs, which no launcher
of torch runs there with several ranks; of them only the imports are looked at.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path, PureWindowsPath

import pytest
import torch

from fsdp_migrate.report.check.sarif import artifact
from fsdp_migrate.report.diff import patch_path

#: Run before anything of the command is imported. Opening a folder fails, as it does on Windows.
_WITHOUT_POSIX = """
import multiprocessing.connection, multiprocessing.popen_spawn_posix, multiprocessing.resource_tracker, os, signal
import platformdirs, shutil, subprocess, sys, tempfile
for name in ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in ("chown", "fork", "forkpty", "getegid", "geteuid", "getgid", "getpgid", "getuid", "getxattr", "killpg",
             "listxattr", "mkfifo", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "setpgid", "setsid", "setxattr"):
    delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGUSR1", "SIGUSR2", "alarm", "setitimer"):
    delattr(signal, name)
opened = os.open
def only_files(path, *rest, **more):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return opened(path, *rest, **more)
os.open = only_files
from fsdp_migrate.pipeline import pool
pool.START_METHOD, pool.MIN_ITEMS, pool.MIN_BYTES = "spawn", 0, 0
os.cpu_count = lambda: 2
"""
#: Which asks for them itself on the system that it was built for.
_TORCH = "import numpy, torch, torch.distributed.checkpoint"
_COMMAND = """
import sys
from fsdp_migrate.cli import main
if __name__ == "__main__":
    sys.exit(main())
"""
_IMPORTS = """
import importlib, pkgutil, fsdp_migrate, fsdp_rules
for package in (fsdp_migrate, fsdp_rules):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name not in ("fsdp_migrate.__main__", "fsdp_migrate.verify.recorder.inject.sitecustomize"):
            importlib.import_module(module.name)
"""
SOURCE = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"


def _run(code: str, *arguments: str, cwd: Path, first: str = "") -> subprocess.CompletedProcess[str]:
    script = cwd.parent / f"{cwd.name}-script.py"
    script.write_text(first + _WITHOUT_POSIX + code)
    return subprocess.run(
        [sys.executable, str(script), *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_every_module_imports(tmp_path: Path) -> None:
    done = _run(_IMPORTS, cwd=tmp_path, first=_TORCH)
    assert done.returncode == 0, done.stderr


def test_check_and_rewrite_run_in_spawned_processes(tmp_path: Path) -> None:
    for name in ("one.py", "two.py", "three.py"):
        (tmp_path / name).write_text(SOURCE)
    checked = _run(_COMMAND, "check", "--jobs", "2", cwd=tmp_path)
    assert checked.returncode == 1, checked.stderr
    assert "3 source files and 0 checkpoints checked" in checked.stdout
    done = _run(_COMMAND, "rewrite", "--jobs", "2", "--report", "out.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fully_shard(model)" in (tmp_path / "two.py").read_text()


@pytest.mark.parametrize("to", ["safetensors", "full"])
def test_convert_runs(to: str, tmp_path: Path) -> None:
    torch.save({"weight": torch.ones(2, 3)}, tmp_path / "model.pt")
    done = _run(_COMMAND, "checkpoint", "convert", "model.pt", "new", "--to", to, cwd=tmp_path, first=_TORCH)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new").exists()


def test_paths_with_backslashes_become_those_of_patches_and_addresses() -> None:
    base = PureWindowsPath(r"C:\code\my repo")
    file = base / r"src\train 1.py"
    assert artifact(file, base) == {"uri": "src/train%201.py", "uriBaseId": "%SRCROOT%"}
    assert artifact(PureWindowsPath(r"D:\other\a.py"), base) == {"uri": "file:///D:/other/a.py"}
    assert patch_path(file, base) == "src/train 1.py"  # type: ignore[arg-type]


@pytest.mark.skipif(os.sep == "\\", reason="a backslash separates names there, and is no part of one")
def test_a_backslash_in_a_name_is_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "a\\b.py").write_text(SOURCE)
    done = _run(_COMMAND, "check", "--format", "sarif", cwd=tmp_path)
    assert '"uri": "a%5Cb.py"' in done.stdout, done.stderr
