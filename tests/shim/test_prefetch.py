"""``forward_prefetch=True``: gathers are issued earlier, in the order of the first forward; nothing else changes."""

from __future__ import annotations

import contextlib
import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils.checkpoint import checkpoint

import fsdp_compat
from fsdp_compat import FSDP, BackwardPrefetch, CustomPolicy, ModuleWrapPolicy
from fsdp_compat.torch_.gathering import is_being_gathered
from tests.device import DEVICE, ranks
from tests.pool import Pool
from tests.shim.collectives import Collectives
from tests.shim.training import Case, Outcome, assert_same, train_compat, train_fsdp1, weights_of


def prefetching(rank: int, world_size: int, strategy: str) -> tuple[Outcome, Outcome, Outcome]:
    def case(forward_prefetch: bool) -> Case:
        arguments: dict[str, Any] = {"forward_prefetch": forward_prefetch}
        if strategy == "HYBRID_SHARD":
            arguments["device_mesh"] = init_device_mesh(DEVICE.type, (2, 2), mesh_dim_names=("replicate", "shard"))
        return Case(strategy=strategy, accumulate=2, silent=True, arguments=arguments, double=world_size > 2)

    return train_fsdp1(rank, case(True)), train_compat(rank, case(True)), train_compat(rank, case(False))


@pytest.mark.parametrize(
    ("strategy", "world_size"), [("FULL_SHARD", 2), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 2), ("HYBRID_SHARD", 4)]
)
def test_numbers_are_those_of_fsdp1_and_of_no_prefetch(pool: Pool, strategy: str, world_size: int) -> None:
    for theirs, ours, without in pool.run(prefetching, world_size, strategy):
        assert_same(ours, without)
        assert_same(theirs, ours, 0.0 if world_size == 2 and strategy != "NO_SHARD" else 1e-12)


class Backwards(nn.Module):
    """Runs its parts in another order than it holds them; ``twice`` runs the last one again in the end."""

    def __init__(self, *, twice: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList(nn.Linear(5, 5) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(5))
        self.order = [3, 2, 1, 0, 3] if twice else [3, 2, 1, 0]
        self.fails = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for index in self.order:
            x = torch.tanh(self.parts[index](x))
            if self.fails:
                raise ArithmeticError
        return x * self.scale


def sharded(*, prefetch: bool = True, twice: bool = False) -> Any:
    return FSDP(
        Backwards(twice=twice),
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        device_id=DEVICE,
        forward_prefetch=prefetch,
    )


def inputs(rank: int, step: int) -> torch.Tensor:
    return torch.randn(3, 5, generator=torch.Generator().manual_seed(100 * rank + step)).to(DEVICE)


@contextlib.contextmanager
def early_gathers(model: Any) -> Any:
    """For each part that runs, which other parts are being gathered at that time."""
    seen: list[tuple[int, list[int]]] = []

    def look(part: nn.Module, args: Any) -> None:
        parts = list(model.parts)
        asked = [index for index, other in enumerate(parts) if is_being_gathered(other)]
        seen.append((parts.index(part), asked))

    # Behind the gather, where a hook of the program does not come.
    handles = [nn.Module.register_forward_pre_hook(part, look) for part in model.parts]
    yield seen
    for handle in handles:
        handle.remove()


def in_recorded_order(rank: int, world_size: int) -> None:
    model, plain = sharded(), sharded(prefetch=False)
    for part in (model, plain):
        part.fails = True
        with pytest.raises(ArithmeticError):
            part(inputs(rank, 9))
        part.fails = False
        for unit in fsdp_compat.fsdp_modules(part):
            unit.reshard()
    # The forward that raised says nothing about the order.
    for step, expected in enumerate([[[], [], [], []], [[2], [1], [0], []], [[2], [1], [0], []]]):
        with early_gathers(model) as seen:
            model(inputs(rank, step)).sum().backward()
        assert seen == list(zip([3, 2, 1, 0], expected, strict=True))
        with early_gathers(plain) as seen:
            plain(inputs(rank, step)).sum().backward()
        assert [asked for _, asked in seen] == [[], [], [], []]
    with early_gathers(model) as seen, torch.no_grad():
        model(inputs(rank, 7))
    assert [asked for _, asked in seen] == [[2], [1], [0], []]


def test_units_prefetch_the_next_one_in_execution_order(pool: Pool) -> None:
    pool.run(in_recorded_order, ranks(2))


def counted(rank: int, world_size: int) -> None:
    """Worker: the same collectives in every step, with and without prefetching."""
    counts: list[list[dict[str, int]]] = []
    for prefetch in (True, False):
        model = sharded(prefetch=prefetch)
        counts.append([])
        for step in range(3):
            with CommDebugMode() as mode:
                model(inputs(rank, step)).sum().backward()
            counts[-1].append({str(op): count for op, count in mode.get_comm_counts().items()})
    assert counts[0] == counts[1]
    # Four units are gathered in forward and in backward, the root once; each of the five is reduced once.
    assert [sum(step.values()) for step in counts[0]] == [14, 14, 14]


def test_the_same_collectives_run(pool: Pool) -> None:
    pool.run(counted, 2)


class Segments(Backwards):
    """Recomputes in the backward what ``size`` parts in a row have done."""

    def __init__(self, size: int, *, reentrant: bool) -> None:
        super().__init__()
        self.size, self.reentrant = size, reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for start in range(0, len(self.parts), self.size):
            x = checkpoint(self.run, start, x, use_reentrant=self.reentrant)
        return x * self.scale

    def run(self, start: int, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts[start : start + self.size]:
            x = torch.tanh(part(x))
        return x


def recomputed(rank: int, world_size: int, size: int, reentrant: bool) -> None:
    """Worker: gathers of a step whose forward runs again in its backward, and which are early in the forward alone."""
    counts = []
    for prefetch in (False, True):
        model = FSDP(
            Segments(size, reentrant=reentrant),
            auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
            device_id=DEVICE,
            forward_prefetch=prefetch,
        )
        for step in range(3):
            with Collectives() as issued:
                with early_gathers(model) as seen:
                    output = model(inputs(rank, step).requires_grad_())
                output.sum().backward()
            counts.append(dict(issued.counts))
        assert [asked for _, asked in seen] == ([[1], [2], [3], []] if prefetch else [[]] * 4)
    assert counts == counts[:1] * 6


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("size", [1, 2])
def test_what_is_recomputed_prefetches_nothing(pool: Pool, size: int, reentrant: bool) -> None:
    pool.run(recomputed, 2, size, reentrant)


def run_twice(rank: int, world_size: int) -> None:
    model = sharded(twice=True)
    for expected in ([[], [], [], [], []], [[], [1], [0], [], []]):
        with early_gathers(model) as seen:
            model(inputs(rank, 0)).sum().backward()
        assert seen == list(zip([3, 2, 1, 0, 3], expected, strict=True))


def test_a_unit_that_runs_twice_does_not_gather_the_next_one_twice(pool: Pool) -> None:
    pool.run(run_twice, ranks(2))


def skipped_later(rank: int, world_size: int) -> None:
    """Worker: a unit is gathered for a forward that leaves it out; the next one must see what was loaded meanwhile."""
    model, other = sharded(), sharded(prefetch=False)
    with torch.no_grad():
        for param in other.parameters():
            param.to_local().mul_(2)
    model(inputs(rank, 0))
    model.order = [3, 2]
    with torch.no_grad():
        model(inputs(rank, 0))
    assert not any(is_being_gathered(part) for part in model.parts)
    model.load_state_dict(other.state_dict())
    model.order = [3, 2, 1, 0]
    assert torch.equal(model(inputs(rank, 1)), other(inputs(rank, 1)))


def test_what_was_gathered_in_vain_is_not_used_later(pool: Pool) -> None:
    pool.run(skipped_later, ranks(2))


def by_hand(rank: int, world_size: int) -> None:
    """Worker: nested calls decide unit by unit, the outermost for all; what the user has set stays."""
    model = Backwards()
    for index in (0, 2, 3):
        model.parts[index] = FSDP(model.parts[index], device_id=DEVICE, forward_prefetch=True)
    FSDP(model.parts[1], device_id=DEVICE)
    assert isinstance(model.parts[3], FSDPModule)
    model.parts[3].set_modules_to_forward_prefetch([model.parts[2], model.parts[1]])
    FSDP(model, device_id=DEVICE, forward_prefetch=True)
    for expected in ([[1, 2], [1], [], []], [[1, 2], [1], [], []]):
        with early_gathers(model) as seen:
            model(inputs(rank, 0)).sum().backward()
        assert [asked for _, asked in seen] == expected


def test_nested_units_ask_each_for_itself(pool: Pool) -> None:
    pool.run(by_hand, ranks(2))


def messages_of(rank: int, world_size: int) -> list[str]:
    messages: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    fsdp_compat.messages._logged.clear()
    logger, handler = logging.getLogger("fsdp_compat"), Keep()
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    policy = CustomPolicy(lambda part: {"forward_prefetch": True} if isinstance(part, nn.Linear) else False)
    for backward in (BackwardPrefetch.BACKWARD_POST, None):
        for _ in range(2):
            model = FSDP(Backwards(), auto_wrap_policy=policy, device_id=DEVICE, backward_prefetch=backward)
            model(inputs(rank, 0)).sum().backward()
    logger.removeHandler(handler)
    with early_gathers(model) as seen:
        model(inputs(rank, 0))
    assert [asked for _, asked in seen] == [[], [], [], []]
    assert weights_of(model).keys() == dict(Backwards().named_parameters()).keys()
    return messages


def test_what_has_no_effect_is_logged_once(pool: Pool) -> None:
    assert [message.split(" has no effect")[0] for message in pool.run(messages_of, 1)[0]] == [
        "backward_prefetch=BackwardPrefetch.BACKWARD_POST",
        "forward_prefetch=True on inner units",
        "backward_prefetch=None",
    ]
