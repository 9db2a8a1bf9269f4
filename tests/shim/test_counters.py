"""States of optimizers that stay in memory after they were loaded: FSDP1 counts on in their counters of steps."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from fsdp_compat import FullOptimStateDictConfig, FullStateDictConfig, StateDictType
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.models import build, loss_of
from tests.shim.training import POLICIES, Outcome, assert_same, quiet_fsdp1


def rolled_back(make: Any, face: Any, rank: int, is_sent: bool) -> Outcome:
    """A snapshot is loaded twice, with steps in between; its counters are among the losses."""
    model = make(build())
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-2)
    losses: list[float] = []

    def train(begin: int) -> None:
        for step in range(begin, begin + 3):
            loss = loss_of(model, rank, step)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(loss.item())

    train(0)
    # On the CPU FSDP1 gathers all tensors of a parameter into one memory, and copies it where it offloads nothing.
    optim_config = FullOptimStateDictConfig(offload_to_cpu=False, rank0_only=is_sent)
    configs = FullStateDictConfig(rank0_only=is_sent), optim_config
    with face.state_dict_type(model, StateDictType.FULL_STATE_DICT, *configs):
        saved = face.optim_state_dict(model, optimizer)
        for begin in (3, 6):
            optimizer.load_state_dict(face.optim_state_dict_to_load(model, optimizer, saved))
            train(begin)
            counters = [(name, key, one) for name, each in saved.get("state", {}).items() for key, one in each.items()]
            losses += [one.item() for *_, one in sorted(counters, key=lambda entry: entry[:2]) if one.dim() == 0]
        weights = {
            name: one["exp_avg"] for name, one in face.optim_state_dict(model, optimizer).get("state", {}).items()
        }
    return Outcome(losses, [], weights)


def run(rank: int, world_size: int, use_orig_params: bool, policy: str, is_sent: bool) -> tuple[Outcome, Outcome]:
    """Worker: what becomes of FSDP1's model and of the shim's."""
    outcomes = []
    for face in (FSDP1, fsdp_compat.FSDP):
        make = functools.partial(
            face, auto_wrap_policy=POLICIES[policy](), device_id=DEVICE, use_orig_params=use_orig_params
        )
        with quiet_fsdp1():
            outcomes.append(rolled_back(make, face, rank, is_sent))
    return outcomes[0], outcomes[1]


@pytest.mark.parametrize("is_sent", [False, True])
@pytest.mark.parametrize("policy", ["none", "transformer"])
@pytest.mark.parametrize("use_orig_params", [False, True])
def test_counts_on_in_what_was_loaded_as_fsdp1(pool: Pool, use_orig_params: bool, policy: str, is_sent: bool) -> None:
    for theirs, ours in pool.run(run, ranks(2), use_orig_params, policy, is_sent):
        assert_same(theirs, ours)
