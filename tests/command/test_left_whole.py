"""A tree in which every wrap is left by hand keeps all of its FSDP1 code: half a migration does not run."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main

SUBCLASS = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Sharded(FSDP):
    def forward(self, *inputs):
        return super().forward(*inputs)


def nested(root):
    for name, child in root.named_children():
        setattr(root, name, FSDP(child))
    return Sharded(root)
"""
UNKNOWN_ARGUMENT = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def nested(root):
    return FSDP(root, fsdp_auto_wrap_policy=None)
"""
USES = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel

from wrapping import nested


def build(model):
    model = nested(model)
    if not isinstance(model, FSDP):
        model = DistributedDataParallel(model)
    return model


def save(model, optimizer):
    return FSDP.full_optim_state_dict(model, optimizer)
"""


def tree(folder: Path, wrapping: str) -> None:
    (folder / "wrapping.py").write_text(wrapping)
    (folder / "train.py").write_text(USES)


@pytest.mark.parametrize("wrapping", [SUBCLASS, UNKNOWN_ARGUMENT], ids=["subclass", "unknown argument"])
def test_nothing_moves_where_no_wrap_does(
    wrapping: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tree(tmp_path, wrapping)
    assert main(["rewrite", "."]) == 1
    said = capsys.readouterr().out
    assert (tmp_path / "train.py").read_text() == USES
    assert "unchanged: no wrap in this project is rewritten: the one in wrapping.py" in said
    assert said.count("train.py:") == 1, "one finding for the file, not one for each line"
    lines = [line for line in (tmp_path / "wrapping.py").read_text().splitlines() if "TODO(fsdp-migrate" not in line]
    assert lines == wrapping.splitlines()


def test_the_rest_moves_once_the_wrap_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree(tmp_path, SUBCLASS.replace("return Sharded(root)", "return FSDP(root)"))
    main(["rewrite", "."])
    assert "isinstance(model, FSDPModule)" in (tmp_path / "train.py").read_text()


def test_the_shim_moves_what_it_carries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree(tmp_path, UNKNOWN_ARGUMENT)
    main(["rewrite", ".", "--to", "shim"])
    assert "from fsdp_compat import FullyShardedDataParallel as FSDP" in (tmp_path / "train.py").read_text()
