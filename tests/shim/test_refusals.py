"""What FSDP1 refuses the shim refuses too: with the same exception, in words that the same pattern finds."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1

import fsdp_compat
from fsdp_compat import ShardingStrategy
from tests.device import DEVICE, ranks
from tests.pool import Pool, WorkerError
from tests.shim.models import Model, build, loss_of, tokens
from tests.shim.training import POLICIES, quiet_fsdp1

IMPLEMENTATIONS = ("fsdp1", "fsdp_compat")
HYBRID = ShardingStrategy.HYBRID_SHARD


def names_of(implementation: str) -> Any:
    return FSDP1 if implementation == "fsdp1" else fsdp_compat.FSDP


def both_groups(wrap: Callable[..., Any], model: Model) -> None:
    wrap(model, process_group=dist.group.WORLD, device_mesh=init_device_mesh(DEVICE.type, (2,)))


def both_ignored(wrap: Callable[..., Any], model: Model) -> None:
    wrap(model, ignored_modules=[model.norm], ignored_states=[model.norm])


def mixed_states(wrap: Callable[..., Any], model: Model) -> None:
    wrap(model, ignored_states=[model.norm, model.head.weight])


def parameters_as_modules(wrap: Callable[..., Any], model: Model) -> None:
    wrap(model, ignored_modules=[model.head.weight])


def hybrid_by_hand(wrap: Callable[..., Any], model: Model) -> None:
    wrap(model, sharding_strategy=HYBRID)


def hybrid_on_a_line(wrap: Callable[..., Any], model: Model) -> None:
    wrap(model, sharding_strategy=HYBRID, device_mesh=init_device_mesh(DEVICE.type, (2,)))


def hybrid_in_one_group(wrap: Callable[..., Any], model: Model) -> None:
    policy = POLICIES["transformer"]()
    wrap(model, sharding_strategy=HYBRID, process_group=dist.group.WORLD, auto_wrap_policy=policy)


def sharded_ignored(wrap: Callable[..., Any], model: Model) -> None:
    model.head = wrap(model.head)
    wrap(model, ignored_modules=[model.head])


def sharded_under_a_policy(wrap: Callable[..., Any], model: Model) -> None:
    model.head = wrap(model.head)
    wrap(model, auto_wrap_policy=POLICIES["always"]())


def init_that_is_no_function(wrap: Callable[..., Any], model: Model) -> None:
    wrap(nn.Linear(2, 2, device="meta"), param_init_fn=42)


def apply_inside_summon(wrap: Callable[..., Any], model: Model) -> None:
    sharded = wrap(model, use_orig_params=True)
    with sharded.summon_full_params(sharded):
        sharded.apply(lambda module: None)


CASES: dict[Callable[..., None], str] = {
    both_groups: "Cannot pass both process_group and device_mesh at the same time",
    both_ignored: "Cannot pass both ignored_modules and ignored_states at the same time",
    mixed_states: "ignored_states expects all nn.Parameter or all nn.Module list elements but got types",
    parameters_as_modules: "ignored_modules expects nn.Module list elements but got types",
    hybrid_by_hand: "Manual wrapping with .*HYBRID_SHARD requires explicit specification of process group",
    hybrid_on_a_line: "Expected device_mesh to have ndim=2 but got 1",
    hybrid_in_one_group: "Expected process_group to be passed in as either None or",
    sharded_ignored: "`ignored_modules` should not include FSDP modules",
    sharded_under_a_policy: "FSDP auto wrapping requires modules to not already have FSDP applied but found head in",
    init_that_is_no_function: "to be callable",
    apply_inside_summon: "expected to be in states",
}


def refused(rank: int, world_size: int, implementation: str) -> dict[str, str]:
    """Worker: for each case what was raised, as the type's name and the message."""
    found = {}
    for case in CASES:
        try:
            with quiet_fsdp1():
                case(lambda *given, **more: names_of(implementation)(*given, device_id=DEVICE, **more), build())
        except Exception as error:
            found[case.__name__] = f"{type(error).__name__}: {error}"
    return found


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_constructors_refuse_alike(pool: Pool, implementation: str) -> None:
    for found in pool.run(refused, 2, implementation):
        assert found.keys() == {case.__name__ for case in CASES}
        for case, pattern in CASES.items():
            assert re.match(f"ValueError: .*{pattern}", found[case.__name__], re.DOTALL), found[case.__name__]


def no_such_device(rank: int, world_size: int, implementation: str) -> None:
    """Worker: an index where there is no accelerator to count."""
    with quiet_fsdp1(), pytest.raises(RuntimeError, match="accelerator"):
        names_of(implementation)(build(), device_id=0)


CUDA_WITHOUT_DEVICE = pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="on a CUDA build of torch, FSDP1 raises a driver error instead"
)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a device 0")
@pytest.mark.parametrize("implementation", [pytest.param("fsdp1", marks=CUDA_WITHOUT_DEVICE), "fsdp_compat"])
def test_an_index_needs_an_accelerator(pool: Pool, implementation: str) -> None:
    pool.run(no_such_device, 1, implementation)


def devices(rank: int, world_size: int) -> list[torch.device]:
    """Worker: where the units of a model compute, for each way to say so or not to."""
    given: list[Any] = [None, DEVICE, str(DEVICE), torch.device(DEVICE.type)]
    if DEVICE.index is not None:
        given.append(DEVICE.index)
    return [fsdp_compat.FSDP(build(), device_id=device).compute_device for device in given]


def test_devices_are_taken_in_all_forms(pool: Pool) -> None:
    for found in pool.run(devices, 2):
        assert len(set(found)) == 1
        assert found[0].type == DEVICE.type


def steps_in_the_backward(rank: int, world_size: int, through_hooks: bool) -> bool:
    """Worker: whether a parameter moved though nobody called ``step()``."""
    model = fsdp_compat.FSDP(build(), device_id=DEVICE)
    before = [param.to_local().clone() for param in model.parameters()]
    if through_hooks:
        for param in model.parameters():
            own = torch.optim.SGD([param], lr=0.1)
            param.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
    else:
        with quiet_fsdp1():
            from torch.distributed.optim import _apply_optimizer_in_backward
        _apply_optimizer_in_backward(torch.optim.SGD, model.parameters(), {"lr": 0.1}, register_hook=False)
    loss_of(model, rank, 0).backward()
    after = [param.to_local() for param in model.parameters()]
    return any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


def test_optimizers_in_the_backward_are_not_forgotten(pool: Pool) -> None:
    assert all(pool.run(steps_in_the_backward, 2, True))
    with pytest.raises(WorkerError, match=r"NotImplementedError: \S+ has an optimizer that steps in the backward"):
        pool.run(steps_in_the_backward, 2, False)


def exchanged(rank: int, world_size: int) -> None:
    """Worker: a parameter that is exchanged after the first forward would be lost; before it, it is taken over."""
    model = fsdp_compat.FSDP(build(), auto_wrap_policy=POLICIES["transformer"](), device_id=DEVICE)
    model.blocks[0].up.bias = nn.Parameter(model.blocks[0].up.bias.detach() * 0)
    loss_of(model, rank, 0).backward()
    assert model.blocks[0].up.bias.grad is not None
    model.blocks[1].gain = nn.Parameter(model.blocks[1].gain.detach() * 0)
    with pytest.raises(RuntimeError, match=r"gain of this Block was replaced by another parameter after sharding"):
        model(tokens(rank, 1))


def test_an_exchanged_parameter_is_not_lost_in_silence(pool: Pool) -> None:
    pool.run(exchanged, ranks(2))
