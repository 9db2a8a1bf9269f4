"""A conversion that is ended from outside leaves no target, or a whole one, and the source as it was."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fsdp_migrate.checkpoints.convert import manifest
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.entries import tensors
from fsdp_migrate.checkpoints.read import elements
from fsdp_migrate.checkpoints.read.checkpoint_parts import open_all
from tests import forked
from tests.checkpoints.convert import command
from tests.checkpoints.convert.converting import converted
from tests.forked import PYTHON

#: A machine that is busy may let the command end first; then it is tried again.
ATTEMPTS = 5
POINTS = {"just started": 0.0, "a quarter": 0.25, "half": 0.5, "nearly all": 0.95, "comparing": 1.0}


@pytest.fixture(scope="module", autouse=True)
def _forks() -> None:
    forked.start()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return command.generate(tmp_path_factory.mktemp("source") / "all.pt")


@pytest.fixture(scope="module")
def sizes(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """What a whole target takes before it is compared and gets its manifest, per format."""
    folder = tmp_path_factory.mktemp("whole")
    found = {}
    for to in Target:
        target = folder / to.value
        converted(source, target, to)
        files = target.rglob("*") if target.is_dir() else [target]
        found[to.value] = sum(file.stat().st_size for file in files if file.name != manifest.NAME)
    return found


@pytest.fixture(autouse=True)
def untouched(source: Path) -> Iterator[None]:
    before = command.fingerprint(source)
    yield
    assert command.fingerprint(source) == before


@pytest.mark.parametrize(
    ("to", "point"),
    [*(("safetensors", point) for point in POINTS), ("dcp", "half"), ("dcp", "comparing"), ("full", "half")],
)
def test_killed(to: str, point: str, source: Path, sizes: dict[str, int], tmp_path: Path) -> None:
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
    (left,) = command.partial(target)
    done = converted(source, target, Target(to))
    assert [note for note in done.notes if str(left) in note] == [
        f"{left}: left by a killed or running conversion; delete it if none is running"
    ]
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


def _assert_whole(source: Path, target: Path) -> None:
    wanted = torch.load(source, weights_only=True)["model"]
    (found,) = open_all(target)
    assert not found.problems
    held = {str(key[-1]): entry for key, entry in tensors(found.entries)}
    assert held.keys() == wanted.keys()
    assert all(elements.whole(entry).tobytes() == wanted[name].numpy().tobytes() for name, entry in held.items())
