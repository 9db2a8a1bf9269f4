"""How long a step takes: the operations of a replay on the streams that FSDP2 uses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fsdp_migrate.tune.accounts import Operation
from fsdp_migrate.tune.machine import Machine
from fsdp_migrate.tune.sharding_layout import Layout


@dataclass(frozen=True)
class Times:
    """Seconds of one step: all, of computing and of collectives alone, and of waiting that no computation hides."""

    step: float
    computing: float
    communicating: float

    @property
    def exposed(self) -> float:
        """What the step takes longer than its computation."""
        return self.step - self.computing


def times(operations: Sequence[Operation], layout: Layout, machine: Machine, dtype: str) -> Times:
    """The step on a machine that computes in ``dtype``."""
    return _Streams(layout, machine, dtype).run(operations)


class _Streams:
    """When each stream is done. One communicator runs gathers and scatters one after the other, in order of issue."""

    def __init__(self, layout: Layout, machine: Machine, dtype: str) -> None:
        self._layout, self._machine, self._flops = layout, machine, machine.computing(dtype)
        self._compute = self._network = self._between = 0.0
        self._gathered: dict[int, float] = {}
        self._scattered: list[float] = []
        self._gate = self._copied = 0.0
        self._computing = self._communicating = 0.0

    def run(self, operations: Sequence[Operation]) -> Times:
        """All of them."""
        for operation in operations:
            if not self._machine.overlaps:
                self._compute = self._network = max(self._compute, self._network, self._between)
            _STEPS[operation.kind](self, operation)
        return Times(max(self._compute, self._network, self._between), self._computing, self._communicating)

    def _collective(self, operation: Operation, ready: float) -> float:
        # Shards lie beside each other, replicas each in another node where there are several.
        spread = operation.kind == "reduction" and self._layout.ranks > self._machine.node
        seconds = self._machine.seconds(operation.kind, operation.amount, operation.ranks, spread=spread)
        self._communicating += seconds
        return ready + seconds

    def _work(self, seconds: float) -> None:
        self._compute += seconds
        self._computing += seconds

    def compute(self, operation: Operation) -> None:
        """Floating-point operations."""
        self._work(operation.amount / self._flops)

    def gather(self, operation: Operation) -> None:
        """On the stream of gathers, which may run ahead of the computation."""
        ready = max(self._network, self._gate, 0.0 if self._machine.overlaps else self._compute)
        self._network = self._gathered[operation.unit] = self._collective(operation, ready)

    def wait(self, operation: Operation) -> None:
        """The computation needs what was gathered, and copies it out."""
        self._compute = max(self._compute, self._gathered.pop(operation.unit, 0.0)) + self._machine.host
        self._work(operation.amount / self._machine.copies)
        # In the forward a buffer is free when the next one is copied, in the backward at once.
        self._gate = self._copied if operation.ahead else self._compute
        self._copied = self._compute

    def scatter(self, operation: Operation) -> None:
        """After the backward of a unit; the one before it has to be done, so that its buffer is free."""
        if self._scattered:
            self._compute = max(self._compute, self._scattered.pop(0))
        self._work(operation.amount / self._machine.copies)
        self._network = self._collective(operation, max(self._network, self._compute))
        self._scattered.append(self._network)

    def reduction(self, operation: Operation) -> None:
        """Among replicas, after the scatter."""
        ready = max(self._between, self._scattered[-1] if self._scattered else self._compute)
        self._between = self._collective(operation, ready)

    def settle(self, operation: Operation) -> None:
        """The end of a backward waits for all."""
        self._compute = max(self._compute, self._network, self._between)
        self._scattered.clear()


_STEPS: dict[str, Callable[[_Streams, Operation], None]] = {
    "compute": _Streams.compute,
    "gather": _Streams.gather,
    "wait": _Streams.wait,
    "scatter": _Streams.scatter,
    "reduction": _Streams.reduction,
    "settle": _Streams.settle,
}
