"""Programs that read the group, the rank, the size and the device of FSDP1's wrapper: trained on four ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_rules.settings import Settings
from tests.parity.compare import differ
from tests.parity.trees import rewrite_by_command, train_tree, tree
from tests.pool import Pool

TRAIN = """\
import sys
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from common import CPU, Block, Net, data, finish, note, start

def build(rank):
    net = Net()
{wrap}


def main():
    rank = start()
    model = build(rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    torch.manual_seed(10 + model.rank)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(data().to(model.compute_device)).square().mean()
        loss.backward()
        total = loss.detach().clone()
        dist.all_reduce(total, group=model.process_group)
        note(total / model.world_size)
        optimizer.step()
    for rank in dist.get_process_group_ranks(getattr(model, "process_group", None)):
        note(rank)
    with torch.no_grad():
        model(data())
    note(dist.get_world_size(model.process_group))
{ending}
    finish(sys.argv[1])


if __name__ == "__main__":
    main()
"""
GROUPS = """\
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    inside, across = mesh["shard"].get_group(), mesh["replicate"].get_group()
"""
POLICY = "auto_wrap_policy=ModuleWrapPolicy({Block})"
HYBRID = "sharding_strategy=ShardingStrategy.HYBRID_SHARD"
#: The end of ``build``.
WRAPS = {
    "the default group": f"    return FSDP(net, {POLICY}, device_id=CPU)\n",
    "no shards": "    return FSDP(net, sharding_strategy=ShardingStrategy.NO_SHARD, device_id=CPU)\n",
    "gathered": "    return FSDP(net, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, device_id=CPU)\n",
    "a group of its own": f"{GROUPS}    return FSDP(net, process_group=inside, {POLICY}, device_id=CPU)\n",
    "a mesh": f"{GROUPS}    return FSDP(net, device_mesh=mesh['replicate'], device_id=CPU)\n",
    "a hybrid mesh": f"{GROUPS}    return FSDP(net, device_mesh=mesh, {HYBRID}, {POLICY}, device_id=CPU)\n",
    "a hybrid pair": f"{GROUPS}    return FSDP(net, process_group=(inside, across), {HYBRID}, device_id=CPU)\n",
    "replicas of two": f"{GROUPS}    return FSDP(net, process_group=across, "
    "sharding_strategy=ShardingStrategy.NO_SHARD, device_id=CPU)\n",
    "a unit in a model": f"{GROUPS}    net.head = FSDP(net.head, process_group=inside, device_id=CPU)\n"
    "    return FSDP(net, device_id=CPU)\n",
}
#: Those whose model has the default group, for which torch.distributed has all that is read.
OF_ALL = ("the default group", "no shards", "gathered")
UNITS = """\
    for unit in FSDP.fsdp_modules(model):
        note(unit.rank)
        note(unit.world_size)
"""


def program(wrap: str) -> dict[str, str]:
    return tree(train=TRAIN.format(wrap=wrap, ending=UNITS))


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize("form", WRAPS)
def test_what_is_read_of_the_wrapper_stays_the_same(pool: Pool, tmp_path: Path, form: str, to: str) -> None:
    files = program(WRAPS[form])
    done = rewrite_by_command(files, Settings(to=to))
    assert [one for one in done.manual() if "FSDP902" in one] == []
    before = train_tree(pool, files, tmp_path / "before", fsdp1=True, world_size=4)
    after = train_tree(pool, done.files, tmp_path / "after", world_size=4)
    assert len(before[0]) >= 7
    assert list(differ("read", before, after, 1e-6)) == []
    if to == "native":
        assert ("fsdp_compat" in done.files["train.py"]) is (form not in OF_ALL)
