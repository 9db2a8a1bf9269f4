"""FSDP2's state machine, as torch 2.13 has it, run over the events of one recorded step.

Each method stands for the one of the same name of torch's ``FSDPState`` or ``FSDPParamGroup``, and moves bytes where
that one moves tensors. Tests hold it against what gloo runs count.
"""

from __future__ import annotations

from fsdp_migrate.tune.accounts import Accounts, Operation
from fsdp_migrate.tune.sharding_layout import Layout, sizes
from fsdp_migrate.tune.traced_model import Event, TracedModel
from fsdp_migrate.tune.unit_group import FORWARD, IDLE, POST_BACKWARD, PRE_BACKWARD, WHOLE, Group, Shared


class _Context(Shared):
    """What the units of one model share, with ``FSDPStateContext``."""

    def __init__(self, books: Accounts) -> None:
        super().__init__(books)
        self.hooks: dict[int, dict[_State, None]] = {}
        self.forward_root: _State | None = None
        self.ends = False


class _State:
    """One unit: its modules, and its parameters where it has any."""

    def __init__(self, modules: tuple[int, ...], group: Group | None, shared: _Context) -> None:
        self.modules, self.group, self.shared = modules, group, shared
        self.training = IDLE
        self.left: set[int] = set()
        self.ahead: list[_State] = []
        self.behind: list[_State] = []
        self.watched: set[int] = set()

    def pre_forward(self, event: Event) -> None:
        if len(self.modules) > 1 and not self.left:
            self.left = set(self.modules)
        if self.training == PRE_BACKWARD:
            if self.group is not None and self.group.state != WHOLE:
                self.group.unshard()
                self.group.wait_for_unshard()
            return
        first = self.training != FORWARD
        self.training = FORWARD
        if first and self.shared.forward_root is None:
            self.shared.forward_root = self
        if self.group is not None and self.group.pre_forward() and event.differentiable:
            self.watched.add(event.call)
        for other in self.ahead if first else ():
            if other.group is not None:
                other.group.prefetch(FORWARD)

    def post_forward(self, event: Event, states: list[_State]) -> None:
        if len(self.modules) > 1:
            if event.subject not in self.left:
                return
            self.left.discard(event.subject)
            if self.left:
                return
        if self.training == PRE_BACKWARD:
            return
        self._complete(event)
        if self.shared.forward_root is self:
            for state in reversed(states):
                if state is not self and state.left:
                    # Its other modules did not run: the root's output ends its forward.
                    state._complete(event)
                    state.left.clear()
            self.shared.release_deferred()
            self.shared.forward_root = None

    def _complete(self, event: Event) -> None:
        if self.group is not None:
            self.group.post_forward(event.recomputes)
        if event.differentiable:
            self.shared.hooks.setdefault(event.call, {})[self] = None
        self.training = IDLE

    def pre_backward(self) -> None:
        self.training = PRE_BACKWARD
        self.shared.ends = True
        if self.group is not None:
            self.group.pre_backward(not self.behind)
        for other in self.behind:
            if other.group is not None:
                other.group.prefetch(PRE_BACKWARD)


def replay(model: TracedModel, layout: Layout) -> Accounts:
    """What one step of a training issues and holds under a layout, without parameters, optimizer and the update.

    :raises InvalidLayout: ``fully_shard`` would refuse it.
    """
    books = Accounts()
    shared = _Context(books)
    states = []
    for place, own in enumerate(sizes(model, layout)):
        group = Group(place, own, model, layout, shared) if own.parameters else None
        states.append(_State(layout.units[place].modules, group, shared))
    unit_of = {module: state for state in states for module in state.modules}
    group_of = {number: s.group for s in states if s.group is not None for number in s.group.parameters}
    _prefetching(model, layout, states, unit_of)
    # As torch lists them: by the order of modules, the root first.
    states.sort(key=lambda state: min(state.modules))
    for turn in range(layout.microbatches):
        books.begin()
        for group in group_of.values():
            group.reduces = not layout.synchronise_last or turn == layout.microbatches - 1
        for event in model.events:
            books.compute(event.flops, event.saved, event.passing)
            if event.kind == "grad":
                group_of[event.subject].gradient(event.subject)
            elif event.kind == "before":
                for state in shared.hooks.get(event.call, ()):
                    state.pre_backward()
            elif event.kind == "end":
                _end_backward(states, shared, books)
            elif event.subject in unit_of:
                _see(unit_of[event.subject], event, states)
            books.mark()
    return books


def _see(state: _State, event: Event, states: list[_State]) -> None:
    if event.kind == "enter":
        state.pre_forward(event)
    elif event.kind == "exit" or (event.kind == "stop" and len(state.modules) > 1):
        # Units of several modules alone see a forward that an exception ends.
        state.post_forward(event, states)
    elif event.kind == "after" and state.group is not None and event.call in state.watched:
        state.group.post_backward()


def _prefetching(model: TracedModel, layout: Layout, states: list[_State], unit_of: dict[int, _State]) -> None:
    """Each unit's next and previous ones by their first forwards, as the printed code sets them."""
    run = [unit_of[module] for module in model.order if module in unit_of]
    order = [state for state in dict.fromkeys(run) if state is not states[-1]]
    for place, state in enumerate(order):
        state.ahead = order[place + 1 : place + 1 + layout.forward_prefetch]
        if layout.backward_prefetch:
            state.behind = order[max(0, place - layout.backward_prefetch) : place][::-1]


def _end_backward(states: list[_State], shared: _Context, books: Accounts) -> None:
    if not shared.ends:
        return
    shared.forward_root, shared.ends = None, False
    for state in states:
        state.left.clear()
        state.training = IDLE
        if state.group is not None:
            if state.group.training != POST_BACKWARD:
                state.group.post_backward()
            state.group.training = IDLE
            state.group.finalize_backward()
    shared.order.clear()
    for size in shared.scattering:
        books.hold("buffers", -size)
    shared.scattering.clear()
    books.operations.append(Operation("settle", -1))
