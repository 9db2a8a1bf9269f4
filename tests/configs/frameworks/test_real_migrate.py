"""A program that accelerate wraps: traced, its configuration migrated, and trained again under FSDP2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fsdp_migrate.cli import main

pytest.importorskip("accelerate", reason="make frameworks installs accelerate")
pytestmark = [
    pytest.mark.filterwarnings("default"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="it is about machines without a GPU"),
]

CONFIGURATION = """\
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_use_orig_params: true
  fsdp_version: 1
mixed_precision: 'no'
num_machines: 1
num_processes: 2
"""
UNDER_ACCELERATE = """\
import torch
from accelerate import Accelerator
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


def main():
    accelerator = Accelerator()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), Block(), Block(), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(32, 8), torch.randn(32, 2))
    model, optimizer, loader = accelerator.prepare(model, optimizer, torch.utils.data.DataLoader(data, batch_size=4))
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        accelerator.backward(loss)
        optimizer.step()


if __name__ == "__main__":
    main()
"""


def committed(folder: Path, **files: str) -> None:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for arguments in (("add", "."), (*identity, "commit", "-qm", "all")):
        subprocess.run(["git", "-C", str(folder), *arguments], check=True)


def test_the_configuration_of_accelerate_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    committed(tmp_path, fsdp_yaml=CONFIGURATION, train_py=UNDER_ACCELERATE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    launch = (sys.executable, "-m", "accelerate.commands.launch", "--config_file", "fsdp.yaml", "train.py")
    code = main(["migrate", "--cpu", "--", *launch])
    said = capsys.readouterr()
    assert code == 0, said
    assert "wraps Sequential in 3 units" in said.out
    assert "values over 4 steps on 2 ranks" in said.out and "different" not in said.out
    assert "fsdp_version: 2" in (tmp_path / "fsdp.yaml").read_text()
