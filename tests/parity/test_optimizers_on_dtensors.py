"""Which of torch's optimizers step DTensors: the table of the rule, held against torch itself."""

from __future__ import annotations

import inspect

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from fsdp_rules.loop.whole_optimizers import NO_DTENSORS, WHOLE
from tests.device import DEVICE
from tests.pool import Pool


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
        for way in ways(made) if name not in WHOLE else ():
            # SparseAdam takes no dense gradients, whatever the parameters are.
            if not raises(made, way, shards=False):
                switch = NO_DTENSORS.get(name, "")
                assert raises(made, way, shards=True) is (switch is None or way.get(switch, False)), (name, way)


def test_the_table_of_optimizers_is_torchs(pool: Pool) -> None:
    assert NO_DTENSORS.keys() <= classes().keys()
    pool.run(steps, 2)
