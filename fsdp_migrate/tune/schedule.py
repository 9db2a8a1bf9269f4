"""The schedule of a layout: what a step communicates, holds and takes, as plain numbers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from fsdp_migrate.tune.accounts import Accounts
from fsdp_migrate.tune.clock import Times, times
from fsdp_migrate.tune.fsdp1_replay import Fsdp1, flat_sizes, fsdp1_replay
from fsdp_migrate.tune.machine import Machine
from fsdp_migrate.tune.replay import replay
from fsdp_migrate.tune.sharding_layout import Layout, computed_size, sizes
from fsdp_migrate.tune.traced_model import SIZES, TracedModel


@dataclass(frozen=True)
class Schedule:
    """One step on one rank. Bytes of collectives are those of whole tensors; ``held`` is parameters as they are stored.

    ``optimizer``: bytes of the optimizer's state. ``update``: the most bytes while the optimizer steps. ``gathered``:
    the most bytes of whole parameters at a time; ``communicated``: with the buffers of collectives. ``peak``: the most
    bytes of all that is known, with activations that autograd keeps and without what an operator needs while it runs;
    ``at_peak`` takes it apart.
    """

    layout: Layout
    gathers: int
    scatters: int
    reductions: int
    gather_bytes: int
    scatter_bytes: int
    reduction_bytes: int
    gathered: int
    communicated: int
    held: int
    optimizer: int
    update: int
    peak: int
    at_peak: Counter[str]
    times: Times

    @property
    def memory(self) -> int:
        """The most bytes of a step, with its update."""
        return max(self.peak, self.update)

    @property
    def collectives(self) -> int:
        """How many collectives a step issues."""
        return self.gathers + self.scatters + self.reductions


def schedule(model: TracedModel, layout: Layout, machine: Machine) -> Schedule:
    """The schedule of a recorded model under a layout, on a machine.

    :raises InvalidLayout: ``fully_shard`` would refuse the layout.
    """
    held = sum(own.held for own in sizes(model, layout))
    trained = sum(p.padded(layout.shards) * SIZES[p.dtype] for p in model.parameters if p.trained) // layout.shards
    return _schedule(model, layout, machine, replay(model, layout), held, trained)


def fsdp1_schedule(model: TracedModel, layout: Layout, fsdp1: Fsdp1, machine: Machine) -> Schedule:
    """The same under FSDP1, whose units are those of ``layout``."""
    flat = [each for each in flat_sizes(model, layout, fsdp1) if each is not None]
    held, trained = (
        sum(each.numel * each.stored for each in flat if each.trained or not only) // layout.shards
        for only in (False, True)
    )
    return _schedule(model, layout, machine, fsdp1_replay(model, layout, fsdp1), held, trained)


def _schedule(
    model: TracedModel, layout: Layout, machine: Machine, books: Accounts, held: int, trained: int
) -> Schedule:
    optimizer = round(trained * model.optimizer.get("states", 2))
    # Beside the gradients, implementations that step many parameters at a time need tensors of their size.
    update = held + optimizer + round(trained * (1 + model.optimizer.get("temporaries", 1)))
    at_peak = books.at_peak + Counter({"parameters": held, "optimizer": optimizer})
    return Schedule(
        layout,
        books.counts["gather"],
        books.counts["scatter"],
        books.counts["reduction"],
        books.moved["gather"],
        books.moved["scatter"],
        books.moved["reduction"],
        books.peaks["gathered"],
        books.peaks["communicated"],
        held,
        optimizer,
        update,
        books.peaks["all"] + held + optimizer,
        at_peak,
        times(books.operations, layout, machine, computing_dtype(model, layout)),
    )


def computing_dtype(model: TracedModel, layout: Layout) -> str:
    """The dtype in which most parameters compute."""
    if layout.param_dtype is not None:
        return layout.param_dtype
    weights: Counter[str] = Counter()
    for parameter in model.parameters:
        weights[parameter.dtype] += parameter.numel * computed_size(parameter, layout)
    return weights.most_common(1)[0][0]
