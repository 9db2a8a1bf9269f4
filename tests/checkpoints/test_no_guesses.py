"""Files that torch itself does not read, or reads as more than tensors and plain values: refused, never guessed."""

from __future__ import annotations

import collections
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import ShardingStrategy, StateDictType
from torch.distributed.fsdp.api import FullStateDictConfig

from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.checkpoints.convert.state import CannotConvert
from fsdp_migrate.checkpoints.judge.judge import findings
from tests.checkpoints.convert.converting import converted

W = torch.arange(4.0)


def _saved(path: Path, **more: Any) -> Path:
    torch.save({"w": W, **more}, path)
    return path


def _with(path: Path, member: str, content: bytes) -> None:
    """Write the archive at ``path`` anew, with another ``content`` of one member."""
    with zipfile.ZipFile(path) as archive:
        held = {info.filename: archive.read(info) for info in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in held.items():
            archive.writestr(name, content if name.endswith(member) else data)


@pytest.mark.parametrize("to", Target)
def test_a_byte_order_that_is_none(to: Target, tmp_path: Path) -> None:
    _with(_saved(tmp_path / "in.pt"), "/byteorder", b"middle")
    assert [one.rule for one in findings(tmp_path / "in.pt")] == ["FSDP405"]
    with pytest.raises(CannotConvert, match="its byte order is b'middle', which is neither little nor big"):
        converted(tmp_path / "in.pt", tmp_path / "out", to)


@pytest.mark.parametrize("header", [b"PK\x01\x02", b"PK\x03\x04"])
def test_an_entry_that_is_encrypted(header: bytes, tmp_path: Path) -> None:
    data = bytearray(_saved(tmp_path / "in.pt").read_bytes())
    data[data.rfind(header) + (8 if header.endswith(b"\x02") else 6)] |= 1
    (tmp_path / "in.pt").write_bytes(data)
    with pytest.raises(CannotConvert, match="is encrypted"):
        converted(tmp_path / "in.pt", tmp_path / "out", Target.FULL)


def test_a_dtype_of_torch_that_safetensors_have_no_name_for(tmp_path: Path) -> None:
    _saved(tmp_path / "in.pt", bits=torch.zeros(2, dtype=torch.uint8).view(torch.bits8))
    for to in Target:
        with pytest.raises(CannotConvert, match="bits is bits8, "):
            converted(tmp_path / "in.pt", tmp_path / "out", to)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("to", [Target.FULL, Target.DCP])
def test_attributes_of_a_dictionary_do_not_vanish(to: Target, tmp_path: Path) -> None:
    state = torch.nn.Linear(2, 2).state_dict()
    _saved(tmp_path / "model.pt", state=state)
    converted(tmp_path / "model.pt", tmp_path / "model", to)
    held: Any = collections.OrderedDict(a=W)
    held.scale = W
    _saved(tmp_path / "in.pt", held=held)
    with pytest.raises(CannotConvert, match=r"held cannot be converted: it has attributes \(scale\)"):
        converted(tmp_path / "in.pt", tmp_path / "out", to)


def test_a_state_of_a_dictionary_that_is_none(tmp_path: Path) -> None:
    class Odd:
        def __reduce__(self) -> tuple[Any, ...]:
            return collections.OrderedDict, (), 5

    _saved(tmp_path / "in.pt", held=Odd())
    with pytest.raises(CannotConvert, match=r"held cannot be converted: it has attributes \(state\)"):
        converted(tmp_path / "in.pt", tmp_path / "out", Target.FULL)


def test_settings_of_fsdp_in_a_checkpoint_are_no_harm(tmp_path: Path) -> None:
    settings = {"strategy": ShardingStrategy.FULL_SHARD, "kind": StateDictType.FULL_STATE_DICT, "rest": ...}
    _saved(tmp_path / "in.pt", fsdp={**settings, "config": FullStateDictConfig()})
    assert findings(tmp_path / "in.pt") == []
