"""States that differ from rank to rank: each rank loads its own, as under FSDP1."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity.compare import differ
from tests.parity.test_stale_optimizers import main
from tests.parity.trees import rewrite_tree, train_tree, tree
from tests.pool import Pool

IMPORTS = "from torch.distributed.fsdp import FullStateDictConfig, StateDictType\nfrom pathlib import Path\n"
BUILD = """
model = Net()
torch.manual_seed(100 + rank)
torch.nn.init.normal_(model.head.weight)
model = FSDP(model, device_id=CPU, use_orig_params=True, ignored_modules=[model.head])
folder = Path(sys.argv[1]).parent
"""
OPTIMIZER = "optimizer = torch.optim.SGD([p for p in model.parameters()], lr=0.1)"
STEPS = """
torch.manual_seed(rank)
for step in range(3):
    note(model(data()).square().mean())
    note(model.head.weight.sum())
"""
SAVED = """
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    torch.save(model.state_dict(), folder / f"model-{rank}.pt")
torch.nn.init.zeros_(model.head.weight)
dist.barrier()
"""
IMPORTS += "import torch.distributed as dist\n"
PROGRAMS = {
    "a block": tree(
        train=main(
            f"""{BUILD}{SAVED}
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    model.load_state_dict(torch.load(folder / f"model-{{rank}}.pt"))
{STEPS}""",
            IMPORTS,
        )
    ),
    "no block": tree(
        train=main(
            f"""{BUILD}{SAVED}
path = folder / f"model-{{rank}}.pt"
state = torch.load(path)
model.load_state_dict(state)
{STEPS}""",
            IMPORTS,
        )
    ),
    "a helper in another file": tree(
        train=main(
            f"""{BUILD}{SAVED}
restore(model, folder)
{STEPS}""",
            IMPORTS + "from saving import restore\n",
        ),
        saving="""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

def restore(net, folder):
    with FSDP.state_dict_type(net, StateDictType.FULL_STATE_DICT):
        net.load_state_dict(torch.load(folder / f"model-{dist.get_rank()}.pt"))
""",
    ),
    "a method": tree(
        train=main(
            f"""{BUILD}{SAVED}
Saver(model, folder).restore()
{STEPS}""",
            IMPORTS + "from saving import Saver\n",
        ),
        saving="""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, StateDictType

class Saver:
    def __init__(self, model, folder):
        self.model = model
        self.folder = folder
        self.rank = dist.get_rank()

    def name(self):
        return self.folder / f"model-{self.rank}.pt"

    def restore(self):
        FSDP.set_state_dict_type(self.model, StateDictType.FULL_STATE_DICT)
        self.model.load_state_dict(torch.load(self.name()))
""",
    ),
    "ignored states": tree(
        train=main(
            f"""{BUILD.replace("ignored_modules=[model.head]", "ignored_states=list(model.head.parameters())")}{SAVED}
state = torch.load(folder / f"model-{{rank}}.pt")
with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):
    model.load_state_dict(state)
{STEPS}""",
            IMPORTS,
        )
    ),
}


@pytest.mark.parametrize("files", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_each_rank_loads_its_own(pool: Pool, tmp_path: Path, files: dict[str, str]) -> None:
    after = rewrite_tree(files)
    assert after.manual() == []
    results = [
        train_tree(pool, files, tmp_path / "before", fsdp1=True),
        train_tree(pool, after.files, tmp_path / "after"),
    ]
    assert list(differ("losses", *results)) == []
    assert results[0][0] != results[0][1], "the ranks have experts of their own"
