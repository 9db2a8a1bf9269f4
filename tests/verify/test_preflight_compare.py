"""``preflight --compare`` by the command: what FSDP1 had, and what the rewritten program gets, unit by unit."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from tests.forked import PYTHON
from tests.verify.test_verify_command import TORCHRUN, commit

#: Two blocks of 11 x 6 + 11 + 6 x 11 + 6 numbers, and a root of 5 x 6 + 5: odd sizes, so that both sides pad.
PROGRAM = """
import functools

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(6, 11)
        self.down = nn.Linear(11, 6)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
net = nn.Sequential(Block(), Block(), nn.Linear(6, 5))
model = FSDP(
    net,
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    device_id=torch.device("cpu"),
)
torch.manual_seed(dist.get_rank())
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    model(torch.randn(3, 6)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

#: FSDP1 pads a unit to an even count of numbers, FSDP2 each parameter to an even count of rows.
TABLE = """\
        unit    bytes    per rank  padding  gathers  gathered  reductions  reduced
before  (root)  140 B    72 B      4 B      1        144 B     1           144 B
after   (root)  140 B    84 B      28 B     1        168 B     1           168 B
before  0       596 B    300 B     4 B      2        1.2 KiB   1           600 B
after   0       596 B    312 B     28 B     2        1.2 KiB   1           624 B
before  1       596 B    300 B     4 B      2        1.2 KiB   1           600 B
after   1       596 B    312 B     28 B     2        1.2 KiB   1           624 B
before  total   1.3 KiB  672 B     12 B     5        2.5 KiB   3           1.3 KiB
after   total   1.3 KiB  708 B     84 B     5        2.6 KiB   3           1.4 KiB
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("compared")
    (root / "train.py").write_text(PROGRAM, encoding="utf-8")
    commit(root)
    return root


def test_both_programs_are_printed_unit_by_unit(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(repository)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code = main(["preflight", "--compare", "--", PYTHON, *TORCHRUN[1:], "train.py"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out.splitlines()[-9:] == TABLE.splitlines()
    # What was run are copies.
    assert sorted(path.name for path in repository.iterdir()) == [".git", "train.py"]
    assert (repository / "train.py").read_text(encoding="utf-8") == PROGRAM
