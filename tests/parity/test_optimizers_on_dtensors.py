"""Which of torch's optimizers step DTensors: the table of the rule, held against torch itself."""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp import fully_shard

from fsdp_rules.loop.whole_optimizers import MUON, NO_DTENSORS, WHOLE
from tests.device import DEVICE
from tests.pool import Pool
from tests.shim.gates import needs_torch
from tests.shim.training import quiet_fsdp1


def classes() -> dict[str, type[torch.optim.Optimizer]]:
    return {
        name: made
        for name, made in vars(torch.optim).items()
        if inspect.isclass(made) and issubclass(made, torch.optim.Optimizer) and made is not torch.optim.Optimizer
    }


def ways(made: type[torch.optim.Optimizer]) -> list[dict[str, bool]]:
    """The arguments that choose between the implementations of a class."""
    takes = inspect.signature(made).parameters
    return [{}] + [{name: value} for name in ("foreach", "fused") if name in takes for value in (True, False)]


def raises(made: type[torch.optim.Optimizer], way: dict[str, bool], shards: bool) -> bool:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4)).to(DEVICE)
    if shards:
        fully_shard(model)
    optimizer = made(model.parameters(), lr=0.01, **way)
    model(torch.ones(2, 6, device=DEVICE)).sum().backward()
    try:
        optimizer.step()
    except (NotImplementedError, RuntimeError):
        return True
    return False


def steps(rank: int, world_size: int) -> None:
    """Worker: every class, in every implementation, steps DTensors unless the table says that it does not."""
    for name, made in classes().items():
        for way in ways(made) if name not in WHOLE - NO_DTENSORS.keys() else ():
            # SparseAdam takes no dense gradients, whatever the parameters are.
            if not raises(made, way, shards=False):
                switch = NO_DTENSORS.get(name, "")
                assert raises(made, way, shards=True) is (switch is None or way.get(switch, False)), (name, way)


def muon(rank: int, world_size: int) -> list[str]:
    """Worker: what torch's Muon says under FSDP1, and under FSDP2 for matrices of enough rows and of one row."""
    said = []
    for sharding, rows in (("fsdp1", 4), ("fsdp2", 4), ("fsdp2", 1)):
        model: nn.Module = nn.Sequential(nn.Linear(6, rows, bias=False)).to(DEVICE)
        with quiet_fsdp1():
            model = FSDP1(model, device_id=DEVICE, use_orig_params=True) if sharding == "fsdp1" else fully_shard(model)
        try:
            optimizer = getattr(torch.optim, MUON.rpartition(".")[2])(model.parameters())
            model(torch.ones(2, 6, device=DEVICE)).sum().backward()
            optimizer.step()
            said.append("stepped")
        except (RuntimeError, ValueError) as error:
            said.append(str(error).partition(":")[0])
    return said


@needs_torch("2.9", "torch.optim.Muon")
def test_muon_steps_matrices_of_enough_rows_under_fsdp2_alone(pool: Pool) -> None:
    before, enough, few = pool.run(muon, 2)[0]
    assert before.startswith("Muon only supports 2D parameters")
    assert enough == "stepped"
    assert few.startswith("aten.")


def test_the_table_of_optimizers_is_torchs(pool: Pool) -> None:
    assert NO_DTENSORS.keys() <= classes().keys()
    pool.run(steps, 2)
