"""FSDP1 as torch 2.13 has it, run over the events of one recorded step: what the program costs before its migration.

Each method stands for the function of torch's ``_runtime_utils`` of a like name. Tests hold it against what gloo runs
under FSDP1 count.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from fsdp_migrate.tune.accounts import Accounts, Operation
from fsdp_migrate.tune.sharding_layout import Layout, computed_size, managed, reduced_size
from fsdp_migrate.tune.traced_model import SIZES, Event, TracedModel

IDLE, FORWARD, BACKWARD_PRE, BACKWARD_POST = "idle", "forward", "backward pre", "backward post"
#: The end of a backward, among the parameters that a unit waits for.
_END = -1
#: Bytes to which FSDP1 aligns each parameter in a flat one, with use_orig_params=True.
_ALIGNED = 16


@dataclass(frozen=True)
class Fsdp1:
    """FSDP1's own settings. ``aligned``: use_orig_params=True. ``backward``: "pre", "post" or "" for no prefetching."""

    aligned: bool = False
    backward: str = "pre"
    forward: bool = False


@dataclass(frozen=True)
class FlatSizes:
    """One flat parameter: elements with alignment and padding, bytes of an element as it is stored and as it computes.

    ``reduced``: bytes of an element of its gradient as it is reduced. ``trained``: it has a gradient.
    """

    numel: int
    stored: int
    computed: int
    reduced: int
    trained: bool


def flat_sizes(model: TracedModel, layout: Layout, fsdp1: Fsdp1) -> list[FlatSizes | None]:
    """The flat parameter of each unit, None where it has none."""
    found: list[FlatSizes | None] = []
    for places in managed(model, layout):
        own = [model.parameters[place] for place in places]
        if not own:
            found.append(None)
            continue
        computed = computed_size(own[0], layout)
        numel = 0
        for parameter in own:
            numel += -numel % (_ALIGNED // computed) if fsdp1.aligned else 0
            numel += parameter.numel
        numel += -numel % layout.shards
        trained = any(parameter.trained for parameter in own)
        found.append(FlatSizes(numel, SIZES[own[0].dtype], computed, reduced_size(own[0], layout), trained))
    return found


class _Unit:
    """``FlatParamHandle`` with the state of its module."""

    def __init__(self, place: int, flat: FlatSizes, is_root: bool, shared: _Shared) -> None:
        self.place, self.flat, self.is_root, self.shared = place, flat, is_root, shared
        self.layout, self.books = shared.layout, shared.books
        reshard = self.layout.units[place].reshard
        self.reshards = not is_root and (reshard is None or reshard is True)
        #: The strategy frees in each backward, whatever is synchronised.
        self.frees = shared.full
        self.training, self.is_whole, self.prefetched = IDLE, self.layout.shards == 1, False
        self.needs_forward = self.needs_backward = self.ran_pre_backward = self.has_sharded = False
        self.index: int | None = None
        #: The parameters whose gradients autograd computes before it comes to views of the flat one.
        self.waits: set[int] = set()
        self.viewed = self.gradient = 0

    @property
    def _bytes(self) -> int:
        return self.flat.numel * self.flat.computed

    def unshard(self) -> None:
        """Gather into the whole flat parameter, unless it is there."""
        if self.is_whole:
            return
        self.is_whole = True
        self.books.hold("gathered", self._bytes)
        self.books.collective("gather", self.place, self._bytes, self.layout.shards, ahead=self.training == FORWARD)
        self.books.operations.append(Operation("wait", self.place, 0, ahead=self.training == FORWARD))

    def reshard(self, free: bool) -> None:
        """Give the whole flat parameter up, or keep it."""
        self.prefetched = False
        if free and self.is_whole and self.layout.shards > 1:
            self.is_whole = False
            self.books.hold("gathered", -self._bytes)

    def pre_forward(self) -> None:
        if self.training == BACKWARD_PRE:
            return
        self.training = FORWARD
        self.shared.in_root = self.is_root
        if not self.prefetched:
            self.unshard()
            self._view(self.shared.own[self.place])
        self.needs_forward = False
        if self.shared.fsdp1.forward:
            following = self.shared.following.get(self.place)
            if following is not None and following.needs_forward and not following.prefetched:
                following.unshard()
                following.prefetched = True
                # Its views are older than all that this unit computes.
                following._view(self.shared.own[following.place] | (self.shared.own[self.place] or {self.over}))

    @property
    def over(self) -> int:
        """Stands for the end of its backward among parameters, where it has none of its own."""
        return -2 - self.place

    def _view(self, before: set[int]) -> None:
        """Views of the flat parameter are made; a later node of the graph goes backward first."""
        self.shared.views += 1
        self.viewed = self.shared.views
        self.waits = {_END} if self.shared.in_root else set(before)

    def post_forward(self, event: Event) -> None:
        if self.training == BACKWARD_PRE:
            return
        if not self.index:
            self.index = len(self.shared.order)
        self.shared.order.append(self)
        self.reshard(self.reshards)
        if event.differentiable:
            self.needs_backward = True
            self.shared.hooks.setdefault(event.call, []).append(self)
        self.training = IDLE

    def pre_backward(self) -> None:
        if self.ran_pre_backward:
            return
        self.shared.ends = True
        self.training = BACKWARD_PRE
        if self.needs_backward and not self.prefetched:
            self.unshard()
        self.needs_backward = False
        if self.shared.fsdp1.backward == "pre":
            self._prefetch()
        self.ran_pre_backward = True

    def _prefetch(self) -> None:
        if not self.index:
            return
        target = self.shared.order[self.index - 1]
        if target.needs_backward and not target.prefetched:
            target.unshard()
            target.prefetched = True

    def computed(self, number: int) -> None:
        """The gradient of one of its parameters was computed."""
        size = self.shared.model.parameters[number].numel * self.flat.computed
        self.gradient += size
        self.books.hold("gradients", size)

    def post_backward(self) -> None:
        self.training = BACKWARD_POST
        self.reshard(self.shared.reduces or self.frees)
        if self.shared.fsdp1.backward == "post":
            self._prefetch()
        if self.shared.reduces:
            self._reduce()

    def _reduce(self) -> None:
        books, layout = self.books, self.layout
        whole = self.flat.numel * self.flat.reduced
        if layout.shards == 1:
            books.collective("reduction", self.place, whole, layout.replicas)
            return
        mine = whole // layout.shards
        stored = mine * self.flat.stored // self.flat.reduced
        books.hold("buffers", whole)
        books.hold("gradients", -self.gradient)
        self.gradient = 0
        books.hold("sharded_gradients", mine)
        books.collective("scatter", self.place, whole, layout.shards)
        if layout.replicas > 1:
            books.collective("reduction", self.place, mine, layout.replicas)
        books.hold("buffers", -whole)
        books.hold("sharded_gradients", (0 if self.has_sharded else stored) - mine)
        self.has_sharded = True

    def reshard_only(self) -> None:
        """Without gradients of its own: once those of its inputs are there."""
        self.reshard(self.shared.reduces or self.frees)

    def end_backward(self) -> None:
        """``_catch_all_reshard`` and what resets a handle."""
        self.reshard(self.shared.reduces or self.frees)
        self.training, self.index = IDLE, None
        self.ran_pre_backward = self.needs_backward = False


class _Shared:
    """What all units of one model have in common."""

    def __init__(self, model: TracedModel, layout: Layout, fsdp1: Fsdp1) -> None:
        self.model, self.layout, self.fsdp1, self.books = model, layout, fsdp1, Accounts()
        self.full = all(unit.reshard is not False for unit in layout.units)
        self.order: list[_Unit] = []
        self.following: dict[int, _Unit] = {}
        self.hooks: dict[int, list[_Unit]] = {}
        self.used = {event.subject for event in model.events if event.kind == "grad"}
        self.own = [self.used.intersection(numbers) for numbers in managed(model, layout)]
        self.views = 0
        #: The root's own forward has begun, and none below it.
        self.in_root = False
        self.frozen: list[_Unit] = []
        self.reduces, self.ends = True, False


def fsdp1_replay(model: TracedModel, layout: Layout, fsdp1: Fsdp1) -> Accounts:
    """What one step issues and holds under FSDP1, whose units are those of ``layout``; as :func:`.replay.replay`."""
    shared = _Shared(model, layout, fsdp1)
    books = shared.books
    last = len(layout.units) - 1
    units = {
        place: _Unit(place, flat, place == last, shared)
        for place, flat in enumerate(flat_sizes(model, layout, fsdp1))
        if flat is not None
    }
    of_module = {layout.units[place].modules[0]: unit for place, unit in units.items()}
    of_parameter = {number: units[place] for place, numbers in enumerate(shared.own) for number in numbers}
    run = [of_module[module] for module in model.order if module in of_module]
    shared.following = {one.place: two for one, two in pairwise(run)}
    for turn in range(layout.microbatches):
        books.begin()
        shared.reduces = not layout.synchronise_last or turn == layout.microbatches - 1
        for unit in units.values():
            unit.needs_forward = True
        for event in model.events:
            books.compute(event.flops, event.saved, event.passing)
            _see(event, of_module.get(event.subject), shared, of_parameter, list(units.values()))
            books.mark()
    return books


def _see(event: Event, unit: _Unit | None, shared: _Shared, of_parameter: dict[int, _Unit], units: list[_Unit]) -> None:
    if event.kind != "before":
        _reshard_frozen(shared)
    if event.kind == "grad":
        of_parameter[event.subject].computed(event.subject)
        _arrive(event.subject, units)
    elif event.kind == "before":
        for each in shared.hooks.get(event.call, ()):
            each.pre_backward()
        _reshard_frozen(shared)
    elif event.kind == "end":
        if shared.ends:
            _arrive(_END, units)
            shared.ends = False
            shared.order.clear()
            for each in units:
                each.end_backward()
            shared.books.operations.append(Operation("settle", -1))
    elif unit is not None and event.kind == "enter":
        unit.pre_forward()
    elif unit is not None and event.kind == "exit":
        unit.post_forward(event)
    elif unit is not None and event.kind == "after" and not unit.flat.trained:
        # The hook of the unit before it, on the same tensor, is older and runs first.
        shared.frozen.append(unit)
        _arrive(unit.over, units)


def _arrive(what: int, units: list[_Unit]) -> None:
    """Autograd has come to a gradient, or to an end: flat parameters whose views are next get their own."""
    for each in sorted((one for one in units if what in one.waits), key=lambda one: -one.viewed):
        each.waits.discard(what)
        if not each.waits and each.gradient:
            each.post_backward()


def _reshard_frozen(shared: _Shared) -> None:
    for each in shared.frozen:
        each.reshard_only()
    shared.frozen.clear()
