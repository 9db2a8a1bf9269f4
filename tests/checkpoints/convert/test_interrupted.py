"""A conversion ended from outside leaves no target, or a whole one; the next one goes on where it was killed."""

from __future__ import annotations

import fcntl
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.entries import tensors
from fsdp_migrate.checkpoints.read import elements, manifest
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from tests import forked
from tests.checkpoints.convert import command
from tests.checkpoints.convert.converting import converted
from tests.forked import PYTHON

#: A machine that is busy may let the command end first; then it is tried again.
ATTEMPTS = 5
POINTS = {"just started": 0.0, "a quarter": 0.25, "half": 0.5, "nearly all": 0.95, "comparing": 1.0}
POINTS |= {f"drawn {number}": random.Random(number).random() for number in range(3)}
GOES_ON = "bytes that a killed conversion had already written"


@pytest.fixture(scope="module", autouse=True)
def _forks() -> None:
    forked.start()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return command.generate(tmp_path_factory.mktemp("source") / "all.pt")


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What a conversion that nothing interrupts writes, per format."""
    found = {to.value: tmp_path_factory.mktemp("whole") / "new" for to in Target}
    for to, target in found.items():
        converted(source, target, Target(to))
    return found


@pytest.fixture(scope="module")
def sizes(whole: dict[str, Path]) -> dict[str, int]:
    """What a whole target takes before it is compared and gets its manifest, per format."""
    found = {}
    for to, target in whole.items():
        files = target.rglob("*") if target.is_dir() else [target]
        found[to] = sum(file.stat().st_size for file in files if file.name != manifest.NAME)
    return found


@pytest.fixture(autouse=True)
def untouched(source: Path) -> Iterator[None]:
    before = command.fingerprint(source)
    yield
    assert command.fingerprint(source) == before


@pytest.mark.parametrize(
    ("to", "point"),
    [
        *(("safetensors", point) for point in POINTS),
        *((to, point) for to in ("dcp", "full") for point in ("half", "comparing", "drawn 0", "drawn 1")),
    ],
)
def test_killed(
    to: str, point: str, source: Path, sizes: dict[str, int], whole: dict[str, Path], tmp_path: Path
) -> None:
    at = int(POINTS[point] * sizes[to])
    for attempt in range(ATTEMPTS):
        # Killed after the rename, it leaves a whole target and what it had not yet removed beside it.
        target = _target_of(tmp_path, attempt)
        process = command.start(source, target, to, python=PYTHON)
        command.signalled(process, signal.SIGKILL, target, at)
        if process.returncode == -signal.SIGKILL and not target.exists():
            break
        _assert_whole(source, target)
    assert process.returncode == -signal.SIGKILL
    assert not target.exists()
    assert len(command.partial(target)) == 1
    done = converted(source, target, Target(to))
    assert any(GOES_ON in note for note in done.notes) or not at
    assert command.partial(target) == []
    _assert_same(whole[to], target)


@pytest.mark.parametrize("to", [to.value for to in Target])
def test_what_a_killed_conversion_left_is_not_trusted(
    to: str, source: Path, whole: dict[str, Path], tmp_path: Path
) -> None:
    """Bytes that a failing machine wrote otherwise are written again, and a longer file is cut off."""
    target = tmp_path / "new"
    process = command.start(source, target, to, python=PYTHON)
    command.signalled(process, signal.SIGKILL, target, command.NBYTES // 2)
    (left,) = command.partial(target)
    for file in (file for file in left.rglob("*") if file.is_file()):
        held = bytearray(file.read_bytes())
        held[len(held) // 2 : len(held) // 2 + 3] = b"\x11\x22\x33"
        file.write_bytes(bytes(held) + bytes(2 * command.NBYTES))
    assert any(GOES_ON in note for note in converted(source, target, Target(to)).notes)
    _assert_same(whole[to], target)


@pytest.mark.parametrize("taken", ["by a running one", "as others may write in it", "for another format"])
def test_files_that_are_not_those_of_a_killed_conversion(taken: str, source: Path, tmp_path: Path) -> None:
    target = tmp_path / "new"
    process = command.start(source, target, "dcp", python=PYTHON)
    command.signalled(process, signal.SIGKILL, target, command.NBYTES // 2)
    (left,) = command.partial(target)
    if taken == "as others may write in it":
        left.chmod(0o777)
    held = os.open(left, os.O_RDONLY)
    if taken == "by a running one":
        fcntl.flock(held, fcntl.LOCK_EX)
    done = converted(source, target, Target.FULL if taken == "for another format" else Target.DCP)
    os.close(held)
    assert not any(GOES_ON in note for note in done.notes)
    assert f"{left}: left by a killed or running conversion; delete it if none is running" in done.notes
    assert command.partial(target) == [left]
    _assert_whole(source, target)


@pytest.mark.parametrize(
    ("to", "number", "point"),
    [
        ("safetensors", signal.SIGHUP, "just started"),
        ("safetensors", signal.SIGTERM, "half"),
        ("safetensors", signal.SIGINT, "comparing"),
        ("dcp", signal.SIGTERM, "half"),
        ("dcp", signal.SIGINT, "half"),
        ("full", signal.SIGTERM, "just started"),
        ("full", signal.SIGINT, "half"),
    ],
)
def test_asked_to_end(
    to: str, number: signal.Signals, point: str, source: Path, sizes: dict[str, int], tmp_path: Path
) -> None:
    at = int(POINTS[point] * sizes[to])
    for attempt in range(ATTEMPTS):
        target = _target_of(tmp_path, attempt)
        process = command.start(source, target, to, python=PYTHON)
        out, err = command.signalled(process, number, target, at)
        if process.returncode != 0 and not target.exists():
            break
        _assert_whole(source, target)
    assert process.returncode == 128 + number
    assert "Traceback" not in out + err
    assert not target.exists()
    assert command.partial(target) == []


def _target_of(tmp_path: Path, attempt: int) -> Path:
    """A path in a folder of its own, for what one attempt leaves beside it."""
    folder = tmp_path / str(attempt)
    folder.mkdir()
    return folder / "new"


def _assert_same(whole: Path, target: Path) -> None:
    files = sorted(whole.rglob("*")) if whole.is_dir() else [whole]
    held = sorted(target.rglob("*")) if target.is_dir() else [target]
    assert [file.relative_to(target) for file in held] == [file.relative_to(whole) for file in files]
    for one, other in zip(files, held, strict=True):
        assert one.read_bytes() == other.read_bytes()


def _assert_whole(source: Path, target: Path) -> None:
    wanted = torch.load(source, weights_only=True)["model"]
    (found,) = open_all(target)
    assert not found.problems
    held = {str(key[-1]): entry for key, entry in tensors(found.entries)}
    assert held.keys() == wanted.keys()
    assert all(elements.whole(entry).tobytes() == wanted[name].numpy().tobytes() for name, entry in held.items())
