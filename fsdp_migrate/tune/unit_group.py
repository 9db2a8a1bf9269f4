"""The parameters of one unit as torch 2.13's ``FSDPParamGroup`` gathers, reshards and reduces them, on paper."""

from __future__ import annotations

from fsdp_migrate.tune.accounts import Accounts, Operation
from fsdp_migrate.tune.sharding_layout import Layout, UnitSizes, computed_size, kept_ranks, reduced_size
from fsdp_migrate.tune.traced_model import SIZES, TracedModel

IDLE, FORWARD, PRE_BACKWARD, POST_BACKWARD = "idle", "forward", "pre-backward", "post-backward"
SHARDED, KEPT, WHOLE = "sharded", "kept", "whole"


class Shared:
    """What the units of one model share, as ``FSDPCommContext`` holds it."""

    def __init__(self, books: Accounts) -> None:
        self.books = books
        self.order: list[Group] = []
        self.deferred = 0
        self.scattering: list[int] = []

    def release_deferred(self) -> None:
        """The buffer of the last gather of a forward, which the next one may not overwrite before it is copied."""
        self.books.hold("buffers", -self.deferred)
        self.deferred = 0


class Group:
    """The parameters of one unit."""

    def __init__(self, place: int, own: UnitSizes, model: TracedModel, layout: Layout, shared: Shared) -> None:
        self.place, self.own, self.layout, self.shared, self.books = place, own, layout, shared, shared.books
        self.parameters = {number: model.parameters[number] for number in own.parameters}
        self.kept_over = kept_ranks(layout.units[place], layout)
        self.training, self.state, self.pending = IDLE, SHARDED, False
        self.indices: list[int] = []
        self.reduces = True
        #: Bytes of whole gradients: as they were computed, and as they wait to be reduced.
        self.fresh: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.has_sharded: set[int] = set()

    def unshard(self) -> None:
        """Begin to gather, unless it is whole or on the way."""
        if self.pending or self.state == WHOLE:
            return
        self.pending = True
        ranks = self.kept_over if self.state == KEPT and self.kept_over else self.layout.shards
        if ranks > 1:
            ahead = self.training == FORWARD
            self.books.hold("buffers", self.own.gathered)
            self.books.collective("gather", self.place, self.own.gathered, ranks, ahead=ahead)

    def wait_for_unshard(self) -> None:
        """Make it whole."""
        if not self.pending:
            return
        ranks = self.kept_over if self.state == KEPT and self.kept_over else self.layout.shards
        if self.training == FORWARD:
            self.shared.release_deferred()
        self.books.hold("gathered", self.own.gathered)
        self.books.operations.append(Operation("wait", self.place, self.own.gathered, ahead=self.training == FORWARD))
        if self.state == KEPT:
            self.books.hold("kept", -self.own.kept)
        self.state, self.pending = WHOLE, False
        if ranks > 1:
            if self.training == FORWARD:
                self.shared.deferred = self.own.gathered
            else:
                self.books.hold("buffers", -self.own.gathered)

    def reshard(self) -> None:
        """Give up what was gathered, as far as the layout says."""
        if self.training == FORWARD:
            if self.kept_over is None:
                return
            if self.own.kept:
                self.books.hold("kept", self.own.kept)
                self.books.hold("gathered", -self.own.gathered)
                self.state = KEPT
                return
        if self.state == WHOLE:
            self.books.hold("gathered", -self.own.gathered)
        elif self.state == KEPT:
            self.books.hold("kept", -self.own.kept)
        self.state = SHARDED

    def pre_forward(self) -> bool:
        """Whether this pass enters the unit, so that its backward is to be seen."""
        entering = self.training != FORWARD
        self.training = FORWARD
        self.unshard()
        self.wait_for_unshard()
        return entering

    def post_forward(self, recomputes: bool) -> None:
        """Reshard, and take a place in the order of this forward."""
        if not recomputes:
            self.reshard()
            self.indices.append(len(self.shared.order))
            self.shared.order.append(self)
        self.training = IDLE

    def pre_backward(self, prefetches: bool) -> None:
        """Make it whole, and gather the one before it in the order of the forward."""
        if self.training == PRE_BACKWARD:
            return
        self.training = PRE_BACKWARD
        self.unshard()
        self.wait_for_unshard()
        if prefetches and self.indices:
            before = self.indices.pop() - 1
            if before >= 0:
                self.shared.order[before].prefetch(PRE_BACKWARD)

    def prefetch(self, training: str) -> None:
        """Begin to gather on behalf of another unit."""
        own, self.training = self.training, training
        self.unshard()
        self.training = own

    def gradient(self, number: int) -> None:
        """A whole gradient was computed; autograd adds to one that is there."""
        if number not in self.fresh:
            parameter = self.parameters[number]
            self.fresh[number] = parameter.numel * computed_size(parameter, self.layout)
            self.books.hold("gradients", self.fresh[number])

    def post_backward(self) -> None:
        """Reshard, and reduce the gradients that are there; nothing where there is none."""
        self.training = POST_BACKWARD
        for number in set(self.fresh) & set(self.waiting):
            self.books.hold("gradients", -self.fresh.pop(number))
        if not self.reduces:
            self.reshard()
            for number in list(self.fresh):
                self._wait_for_reduction(number)
            return
        found = set(self.fresh) | set(self.waiting)
        self.reshard()
        if self.shared.scattering:
            self.books.hold("buffers", -self.shared.scattering.pop(0))
        if found:
            self._reduce(sorted(found))

    def _wait_for_reduction(self, number: int) -> None:
        parameter = self.parameters[number]
        size = parameter.numel * reduced_size(parameter, self.layout)
        if size != self.fresh[number]:
            self.books.hold("gradients", size)
            self.books.hold("gradients", -self.fresh.pop(number))
            self.waiting[number] = size

    def _reduce(self, numbers: list[int]) -> None:
        shards, books = self.layout.shards, self.books
        own = [self.parameters[number] for number in numbers]
        whole = sum(p.padded(shards) * reduced_size(p, self.layout) for p in own)
        books.hold("buffers", whole)
        books.hold("gradients", -sum(self.fresh.values()) - sum(self.waiting.values()))
        self.fresh.clear()
        self.waiting.clear()
        mine, stored = whole // shards, sum(p.padded(shards) * SIZES[p.dtype] for p in own) // shards
        books.hold("sharded_gradients", mine)
        if shards > 1:
            books.collective("scatter", self.place, whole, shards)
        if self.layout.replicas > 1:
            books.collective("reduction", self.place, mine, self.layout.replicas)
        if stored != mine:
            books.hold("sharded_gradients", stored)
            books.hold("sharded_gradients", -mine)
        if self.has_sharded >= set(numbers):
            # Added to what an earlier backward left.
            books.hold("sharded_gradients", -stored)
        self.has_sharded |= set(numbers)
        self.shared.scattering.append(whole)

    def finalize_backward(self) -> None:
        """Drop what was gathered and not used."""
        if self.pending:
            self.pending = False
            self.books.hold("buffers", -self.own.gathered if self.layout.shards > 1 else 0)
        self.indices.clear()
