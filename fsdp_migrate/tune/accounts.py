"""What a step issues, in order, and what one rank holds meanwhile."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Operation:
    """One thing that a rank does.

    ``kind``: "compute" (``amount`` floating-point operations), "gather", "scatter" and "reduction" (``amount`` bytes of
    the whole tensor, over ``ranks``), "wait" for a gather, "settle" until all is done. ``unit``: by its place in the
    layout, -1 for none. ``ahead``: in the forward, where the buffer of a gather lives until the next one.
    """

    kind: str
    unit: int
    amount: int = 0
    ranks: int = 1
    ahead: bool = False


@dataclass
class Accounts:
    """Counts collectives, and bytes as they come and go; ``peaks`` of each kind and of sums.

    Kinds are "gathered" (whole parameters), "buffers" of collectives, "kept" (parts over fewer ranks), "gradients" that
    are whole, "sharded_gradients", "activations", and "passing" for what operators need while they run.

    "communicated": whole parameters and buffers together. "all": everything, which ``at_peak`` takes apart.
    """

    operations: list[Operation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    now: Counter[str] = field(default_factory=Counter)
    peaks: Counter[str] = field(default_factory=Counter)
    at_peak: Counter[str] = field(default_factory=Counter)
    #: The most bytes in sum around each event.
    marks: list[int] = field(default_factory=list)
    _flops: int = 0
    _most: int = 0

    def begin(self) -> None:
        """A pass begins, whose floating-point operations are counted from zero."""
        self._flops = 0

    def compute(self, flops: int, saved: int, passing: int) -> None:
        """Floating-point operations of this pass so far, bytes of its activations, and those that pass meanwhile."""
        if flops > self._flops:
            self.operations.append(Operation("compute", -1, flops - self._flops))
            self._flops = flops
        self.hold("activations", max(0, saved - self.now["activations"]))
        self.hold("passing", passing)
        self.hold("passing", -passing)
        self.hold("activations", saved - self.now["activations"])

    def mark(self) -> None:
        """An event is over."""
        self.marks.append(self._most)
        self._most = sum(self.now.values())

    def collective(self, kind: str, unit: int, amount: int, ranks: int, *, ahead: bool = False) -> None:
        """One collective over ``ranks``, on a tensor of ``amount`` bytes."""
        self.operations.append(Operation(kind, unit, amount, ranks, ahead))
        self.counts[kind] += 1
        self.moved[kind] += amount

    def hold(self, kind: str, change: int) -> None:
        """More bytes of a kind, or fewer."""
        self.now[kind] += change
        self.peaks[kind] = max(self.peaks[kind], self.now[kind])
        self.peaks["communicated"] = max(self.peaks["communicated"], self.now["gathered"] + self.now["buffers"])
        total = sum(self.now.values())
        self._most = max(self._most, total)
        if total > self.peaks["all"]:
            self.peaks["all"] = total
            self.at_peak = Counter(self.now)
