"""What a sharded model and its optimizer weigh, unit by unit, read off the tensors that are there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from fsdp_compat.tables import readable, table
from fsdp_compat.torch_.gradients import unreduced_gradients
from fsdp_compat.torch_.param_groups import ManagedParameter, managed_parameters

_OUTSIDE = "(outside any unit)"
_NOT_IN_MODEL = "(not in the model)"
_TOTAL = "total"


@dataclass(frozen=True)
class Usage:
    """Bytes of one kind of tensors.

    ``full``: the whole tensors, each once and without padding, as a single process would hold them.
    ``per_rank``: what this rank has allocated for them, ``padding`` and ``unsharded`` included. Meta tensors take
    nothing. ``padding``: allocated and read by no tensor; FSDP2 pads shards to equal size on all ranks.
    ``unsharded``: gathered parameters and gradients not yet reduced, which come beside the shards.
    ``by_device``: ``per_rank`` by device, such as ``{"cpu": 4096}``.
    """

    full: int = 0
    per_rank: int = 0
    padding: int = 0
    unsharded: int = 0
    by_device: Mapping[str, int] = field(default_factory=dict)

    def __add__(self, other: Usage) -> Usage:
        devices = dict.fromkeys((*self.by_device, *other.by_device))
        return Usage(
            full=self.full + other.full,
            per_rank=self.per_rank + other.per_rank,
            padding=self.padding + other.padding,
            unsharded=self.unsharded + other.unsharded,
            by_device={name: self.by_device.get(name, 0) + other.by_device.get(name, 0) for name in devices},
        )


@dataclass(frozen=True)
class MemoryRow:
    """One unit's share, or that of the parameters outside all units.

    ``name`` is the unit's name in the model, ``""`` for the model itself, or one in parentheses where it is no unit;
    ``numel`` counts the elements of its parameters, tied ones once and all ranks' shards together.
    """

    name: str
    class_name: str
    numel: int
    parameters: Usage
    gradients: Usage
    optimizer: Usage

    @property
    def per_rank(self) -> int:
        """Bytes of all three kinds on this rank."""
        return self.parameters.per_rank + self.gradients.per_rank + self.optimizer.per_rank


@dataclass(frozen=True)
class MemoryReport:
    """What :func:`fsdp_compat.memory_report` found: ``rows`` in the order of :class:`fsdp_compat.Plan`, and their sum.

    ``str(report)`` is a table.
    """

    rows: tuple[MemoryRow, ...]
    total: MemoryRow

    def __str__(self) -> str:
        kinds = ("parameters", "gradients", "optimizer")
        head = ("unit", "class", "elements", *(text for kind in kinds for text in (kind, "per rank")), "all per rank")
        lines = table([head, *map(_cells, (*self.rows, self.total))], text_columns=(0, 1))
        return "\n".join([*lines, *self._remarks()])

    def _remarks(self) -> Iterator[str]:
        total = self.total
        usages = {"parameters": total.parameters, "gradients": total.gradients, "optimizer": total.optimizer}
        for what, meaning in (("padding", "to equal shards"), ("unsharded", "next to the shards")):
            found = [f"{kind} {readable(size)}" for kind, usage in usages.items() if (size := getattr(usage, what))]
            if found:
                yield f"of which {what}, {meaning}: {', '.join(found)}"
        everything = sum(usages.values(), Usage())
        if everything.by_device:
            devices = ", ".join(f"{name} {readable(size)}" for name, size in everything.by_device.items())
            yield f"by device: {devices}"


def memory_report(model: nn.Module, optimizer: Optimizer | None = None) -> MemoryReport:
    """Bytes of parameters, gradients and optimizer state of ``model``, per unit and in total, whole and on this rank.

    Counts what is there at the moment of the call: gradients after backward, state after the optimizer's first step,
    gathered parameters while a unit keeps them. Before, after or without sharding, on any mesh (HSDP, tensor
    parallelism), with CPU offload; meta tensors have a full size and take 0 bytes. Parameters of no unit (ignored
    ones, or those of a model that is not sharded) have the row ``(outside any unit)``, state of parameters that
    ``model`` does not have the row ``(not in the model)``.

    An allocation that several tensors share counts once, for the first that is met. Optimizer state that is no
    DTensor counts as whole. Not counted: buffers, activations, communication buffers in flight, and what an
    allocator rounds up.

    No collective, no gather, nothing is moved: each rank may call it alone, and reports for itself.
    Raises TypeError for what is no module or no optimizer.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"memory_report takes a module first, not {model!r}")
    # An optimizer of the user's own need not be torch's.
    if optimizer is not None and not isinstance(getattr(optimizer, "state", None), Mapping):
        raise TypeError(f"memory_report takes an optimizer second, or nothing, not {optimizer!r}")
    ledger = _Ledger()
    names = {module: name for name, module in model.named_modules()}
    state = dict(optimizer.state) if optimizer is not None else {}
    rows = []
    inside: set[int] = set()
    for unit in _units_innermost_first(model):
        managed = managed_parameters(unit)
        inside.update(id(param) for each in managed for param in _forms(each))
        rows.append(
            MemoryRow(
                name=names[unit],
                class_name=_plain_class(unit).__name__,
                numel=sum(each.sharded.numel() for each in managed),
                parameters=_parameters(ledger, managed),
                gradients=_gradients(ledger, unit, managed),
                optimizer=_optimizer(ledger, [state.pop(each.sharded, {}) for each in managed]),
            )
        )
    outside = [param for param in model.parameters() if id(param) not in inside]
    if outside:
        rows.append(
            MemoryRow(
                name=_OUTSIDE,
                class_name="-",
                numel=sum(param.numel() for param in outside),
                parameters=ledger.enter(outside),
                gradients=ledger.enter(param.grad for param in outside if param.grad is not None),
                optimizer=_optimizer(ledger, [state.pop(param, {}) for param in outside]),
            )
        )
    if state:
        rows.append(MemoryRow(_NOT_IN_MODEL, "-", 0, Usage(), Usage(), _optimizer(ledger, state.values())))
    total = MemoryRow(
        name=_TOTAL,
        class_name="",
        numel=sum(row.numel for row in rows),
        parameters=sum((row.parameters for row in rows), Usage()),
        gradients=sum((row.gradients for row in rows), Usage()),
        optimizer=sum((row.optimizer for row in rows), Usage()),
    )
    return MemoryReport(tuple(rows), total)


class _Ledger:
    """Charges each allocation once, to the first who enters it."""

    def __init__(self) -> None:
        self._charged: set[tuple[torch.device, int]] = set()

    def enter(self, tensors: Iterable[torch.Tensor]) -> Usage:
        """Shards, or tensors that are whole on every rank."""
        tensors = list(tensors)
        allocated, by_device = self._allocate(tensors)
        used = sum(_local(tensor).nbytes for tensor in tensors if not tensor.is_meta)
        return Usage(
            full=sum(tensor.numel() * tensor.element_size() for tensor in tensors),
            per_rank=allocated,
            padding=max(0, allocated - used),
            by_device=by_device,
        )

    def enter_unsharded(self, tensors: Iterable[torch.Tensor]) -> Usage:
        """Whole copies of what is sharded, which add nothing to its full size."""
        allocated, by_device = self._allocate(tensors)
        return Usage(per_rank=allocated, unsharded=allocated, by_device=by_device)

    def _allocate(self, tensors: Iterable[torch.Tensor]) -> tuple[int, dict[str, int]]:
        by_device: dict[str, int] = {}
        for local in map(_local, tensors):
            storage = local.untyped_storage()
            size = 0 if local.is_meta else storage.nbytes()
            if size and (local.device, storage.data_ptr()) not in self._charged:
                self._charged.add((local.device, storage.data_ptr()))
                by_device[str(local.device)] = by_device.get(str(local.device), 0) + size
        return sum(by_device.values()), by_device


def _parameters(ledger: _Ledger, managed: Iterable[ManagedParameter]) -> Usage:
    shards = ledger.enter(each.sharded for each in managed)
    return shards + ledger.enter_unsharded(param for each in managed for param in _forms(each)[1:])


def _gradients(ledger: _Ledger, unit: nn.Module, managed: Iterable[ManagedParameter]) -> Usage:
    grads = [(each.sharded, each.sharded.grad) for each in managed if each.sharded.grad is not None]
    shards = ledger.enter(grad for _, grad in grads if not _waits(grad))
    pending = [*unreduced_gradients(unit), *((param, grad) for param, grad in grads if _waits(grad))]
    for each in managed:
        pending += [(each.sharded, param.grad) for param in _forms(each)[1:] if param.grad is not None]
    whole = {param: param.numel() * grad.element_size() for param, grad in pending if _waits(param.grad)}
    return shards + Usage(full=sum(whole.values())) + ledger.enter_unsharded(grad for _, grad in pending)


def _waits(grad: torch.Tensor | None) -> bool:
    """Whether what is in ``.grad`` is not reduced yet: nothing, or what ``no_sync`` shows there."""
    return grad is None or (isinstance(grad, DTensor) and any(placement.is_partial() for placement in grad.placements))


def _optimizer(ledger: _Ledger, states: Iterable[object]) -> Usage:
    return ledger.enter(leaf for state in states for leaf in tree_leaves(state) if isinstance(leaf, torch.Tensor))


def _forms(managed: ManagedParameter) -> list[torch.Tensor]:
    """The sharded parameter, and whatever stands or has stood in its place in the module."""
    registered = [module._parameters.get(name) for module, name in managed.places]
    others = {id(param): param for param in (managed.unsharded, managed.post_forward, *registered) if param is not None}
    others.pop(id(managed.sharded), None)
    return [managed.sharded, *others.values()]


def _local(tensor: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _units_innermost_first(module: nn.Module, seen: set[nn.Module] | None = None) -> Iterator[nn.Module]:
    seen = set() if seen is None else seen
    seen.add(module)
    for child in module.children():
        if child not in seen:
            yield from _units_innermost_first(child, seen)
    if isinstance(module, FSDPModule):
        yield module


def _plain_class(unit: nn.Module) -> type:
    """The class that the unit had before it was sharded."""
    bases = type(unit).__mro__
    return bases[bases.index(FSDPModule) + 1]


def _cells(row: MemoryRow) -> tuple[str, ...]:
    sizes = [
        readable(size)
        for usage in (row.parameters, row.gradients, row.optimizer)
        for size in (usage.full, usage.per_rank)
    ]
    return row.name or "(root)", row.class_name, str(row.numel), *sizes, readable(row.per_rank)
