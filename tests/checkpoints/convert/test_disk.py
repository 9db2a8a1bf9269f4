"""Disks that are too small, or become so, and limits of files: a sentence, and all as it was before."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.convert import command

LIMIT = command.NBYTES // 3

#: In a mount namespace of its own: a disk of a size, the command, and what is left on the disk when it has ended.
_ON_A_SMALL_DISK = """
import contextlib, json, os, pathlib, subprocess, sys
disk, size, fill, *arguments = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], check=True)
process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
filler = pathlib.Path(disk, "filler")
while fill == "fill" and process.poll() is None:
    if any(name.startswith(".") for name in os.listdir(disk)):
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
            while file.write(bytes(2**20)):
                pass
        break
out, err = process.communicate()
filler.unlink(missing_ok=True)
print(json.dumps([process.returncode, out, err, os.listdir(disk)]))
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return command.generate(tmp_path_factory.mktemp("source") / "all.pt")


def _limit() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))


@pytest.mark.parametrize("to", command.FORMATS)
def test_a_limit_of_files(to: str, source: Path, tmp_path: Path) -> None:
    before = command.fingerprint(source)
    process = command.start(source, tmp_path / "new", to, _limit)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert out == ""
    assert err == (
        f"Error: {tmp_path / 'new'}: File too large: failed while writing; the partial output was removed, "
        "the source is unchanged\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert command.fingerprint(source) == before


def _on_a_small_disk(source: Path, disk: Path, size: int, fill: str, to: str) -> tuple[int, str, str, list[str]]:
    unshare = ["unshare", "--map-root-user", "--mount"]
    try:
        possible = subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", disk], capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if possible.returncode:
        pytest.skip(f"no disk can be mounted here: {possible.stderr.decode().strip()}")
    arguments = command.arguments(source, disk / "new", to)
    done = subprocess.run(
        [*unshare, sys.executable, "-c", _ON_A_SMALL_DISK, disk, str(size), fill, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    code, out, err, left = json.loads(done.stdout)
    return code, out, err, left


@pytest.mark.parametrize("to", command.FORMATS)
def test_a_disk_that_others_fill_meanwhile(to: str, source: Path, tmp_path: Path) -> None:
    before = command.fingerprint(source)
    code, out, err, left = _on_a_small_disk(source, tmp_path, command.NBYTES * 11 // 10, "fill", to)
    assert err == (
        f"Error: {tmp_path / 'new'}: No space left on device: failed while writing; the partial output was "
        "removed, the source is unchanged\n"
    )
    assert (code, out, left) == (2, "", [])
    assert command.fingerprint(source) == before


def test_a_disk_that_is_too_small_is_not_written_to(source: Path, tmp_path: Path) -> None:
    size = command.NBYTES // 2
    code, out, err, left = _on_a_small_disk(source, tmp_path, size, "", "safetensors")
    assert f"and the disk has {size:,} left; nothing was written\n" in err
    assert (code, out, left) == (2, "", [])


def test_a_disk_that_just_holds_it(source: Path, tmp_path: Path) -> None:
    """The check beforehand asks for little more than is needed."""
    code, out, err, left = _on_a_small_disk(source, tmp_path, command.NBYTES + 4 * 2**20, "", "safetensors")
    assert (code, err, left) == (0, "", ["new"]), err
    assert out.startswith(f"wrote {tmp_path / 'new'}: {command.COUNT} tensors")
