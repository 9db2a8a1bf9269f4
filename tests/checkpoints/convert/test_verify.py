"""The look at what was written: one bit, name, dtype or value that differs is found, and nothing is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fsdp_migrate.checkpoints.convert import convert as run
from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert, State
from fsdp_migrate.checkpoints.convert.stream import TensorStream
from tests.checkpoints.convert.converting import converted

WEIGHT = torch.tensor([[1.5, 2.5], [3.5, 4.5]])


def _flipped(path: Path) -> None:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    for file in files:
        data = file.read_bytes()
        elements = WEIGHT.numpy().tobytes()
        file.write_bytes(data.replace(elements, elements[:-1] + bytes([elements[-1] ^ 1])))


def _cut(path: Path) -> None:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    largest = max(files, key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-300])


def _gone(path: Path) -> None:
    for file in [*path.iterdir()] if path.is_dir() else [path]:
        file.unlink()


@pytest.mark.parametrize("spoil", [_flipped, _cut, _gone])
@pytest.mark.parametrize("to", list(Target))
def test_what_changes_after_it_was_written(
    to: Target, spoil: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = run._write

    def spoiled(state: State, path: Path, stream: TensorStream, wanted: Target, shard_size: int) -> None:
        write(state, path, stream, wanted, shard_size)
        spoil(path)

    monkeypatch.setattr(run, "_write", spoiled)
    (tmp_path / "in").mkdir()
    torch.save({"w": WEIGHT}, tmp_path / "in" / "a.pt")
    with pytest.raises(CannotConvert, match="the written checkpoint differs from the source, and was removed"):
        converted(tmp_path / "in" / "a.pt", tmp_path / "new", to)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"w": WEIGHT}, "step is only in one of source and target"),
        ({"w": WEIGHT, "step": 4}, "step is 4 in the target, not 3"),
        ({"w": WEIGHT, "step": True}, "step is True in the target, not 3"),
        ({"w": WEIGHT.double(), "step": 3}, "w is float64 (2, 2) in the target, not float32 (2, 2)"),
        ({"w": WEIGHT.view(4), "step": 3}, "w is float32 (4,) in the target, not float32 (2, 2)"),
        ({"w": WEIGHT, "step": torch.tensor(3)}, "step is int64 () in the target, not 3"),
        ({"w": WEIGHT.t().contiguous(), "step": 3}, "the elements of w are not those of the source"),
    ],
)
def test_another_content(
    written: dict[str, object], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(state: State, path: Path, stream: TensorStream, to: Target, shard_size: int) -> None:
        stream.whole(("w",))
        torch.save(written, path)

    monkeypatch.setattr(run, "_write", other)
    torch.save({"w": WEIGHT, "step": 3}, tmp_path / "in.pt")
    with pytest.raises(CannotConvert) as error:
        converted(tmp_path / "in.pt", tmp_path / "new", Target.FULL)
    assert said in str(error.value)
