"""A call that takes or loads a state, and everything that is known of its place: worked out once for all rules."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.file.rank_tests import is_under_rank_zero, only_on_rank_zero
from fsdp_rules.model.compiled import is_compiled
from fsdp_rules.model.run_evidence import seen_states
from fsdp_rules.model.same_model import Same, same_model
from fsdp_rules.state._governing.calls import Action, StateCall, state_call
from fsdp_rules.state._governing.entering import governing_with, read_entered
from fsdp_rules.state._governing.evidence import is_shown_sharded
from fsdp_rules.state._governing.loading import Load, find_load
from fsdp_rules.state._governing.nested import calling_block
from fsdp_rules.state._governing.receiver import Receiver
from fsdp_rules.state._governing.state_settings import DEFAULT, Context, Kind, Setting
from fsdp_rules.state._governing.sticky import sticky_context
from fsdp_rules.state._governing.unseen import outer_manager, unseen_manager
from fsdp_rules.state._optimizer_objects import wrapper_of
from fsdp_rules.verdict.finding import Level


@dataclass(frozen=True, eq=False)
class Enclosing:
    """A ``with`` around a call that sets the kind of state. ``context`` None: with arguments that are not clear."""

    block: cst.With
    context: Context | None
    same: Same

    def notes(self, model: cst.BaseExpression, file: File) -> list[str]:
        """What has to be true for it to govern the state of ``model``."""
        if self.context is None:
            return []
        subject = self.context.subject
        other = self.same is not Same.YES and subject is not None
        same = [f"assumes {file.code(model)} is {file.code(subject)}"] if other and subject is not None else []
        return [*same, self.context.note] if self.context.note else same


@dataclass(frozen=True, eq=False)
class Governing:
    """The settings that govern a call, and what has to be true for that. ``problem``: why they are not known."""

    context: Context = DEFAULT
    notes: tuple[str, ...] = ()
    problem: str = ""


class StateSite:
    """What the rules about states ask of one call, each answer worked out at the first question.

    ``state`` is the call itself: its model, its optimizer, the state that it loads. The rest is about its place.
    """

    def __init__(self, state: StateCall, file: File) -> None:
        self.state = state
        self.file = file
        self.call = state.call
        self.model = state.model
        self.takes = state.action in (Action.GET_MODEL, Action.GET_OPTIM)
        self.is_method = state.action in (Action.GET_MODEL, Action.SET_MODEL)
        #: Whether the receiver of a method is a sharded model, by all but a ``with`` around.
        self.receiver = Receiver(state, file)

    @cached_property
    def around(self) -> tuple[Enclosing, ...]:
        """Every ``with`` around that sets the kind of state, innermost first."""
        found: list[Enclosing] = []
        for block, call in governing_with(self.call, self.file):
            context = read_entered(call, self.file)
            subject = context.subject if context is not None else None
            same = same_model(subject, self.model, self.file) if subject is not None else Same.UNSURE
            found.append(Enclosing(block, context if subject is not None else None, same))
        return tuple(found)

    @cached_property
    def enclosing(self) -> Enclosing | None:
        """The innermost of them that may be meant for this model."""
        return next((entry for entry in self.around if not self.is_method or entry.same is not Same.NO), None)

    @property
    def block(self) -> cst.With | None:
        """The ``with`` whose settings govern the call, None where none does."""
        return self.enclosing.block if self.enclosing is not None else None

    @cached_property
    def is_sharded(self) -> bool:
        """Whether the state is that of an FSDP1 model, for all that is known."""
        clear = next((entry for entry in self.around if entry.context is not None), None)
        return clear.same is Same.YES if clear is not None else self.receiver.is_sharded

    @cached_property
    def governing(self) -> Governing:
        """The settings of the ``with`` around, of set_state_dict_type, or those that FSDP1 starts in."""
        found = self._by_run(self._settings())
        problem, note = self._wrapper
        if not found.problem and (problem or note):
            return Governing(found.context, (*found.notes, *([note] if note else [])), problem)
        return found

    @cached_property
    def _wrapper(self) -> tuple[str, str]:
        """What stands against, and what is assumed of, an optimizer that is an object around another one."""
        load = self.load if self.state.optim is None else None
        optim = load.target if load is not None else self.state.optim
        return ("", "") if optim is None else wrapper_of(optim, self.file)

    @property
    def sure(self) -> Level | None:
        """The level of what is exact for every optimizer of torch; None where it rests on a wrapper around one."""
        return None if self._wrapper[1] else Level.SAFE

    def _by_run(self, found: Governing) -> Governing:
        """``found``, or for what the code leaves open the type of state that a traced run shows in force here."""
        shown = seen_states(self.call, self.file) if self.is_method and self.enclosing is None else frozenset()
        if not shown or (not found.problem and found.context is not DEFAULT):
            return found
        if shown == {Kind.FULL.value}:
            return Governing()
        return Governing(problem=f"in the traced run, {', '.join(sorted(shown))} is set elsewhere and applies here")

    def _settings(self) -> Governing:
        if self.enclosing is not None:
            notes = self.enclosing.notes(self.model, self.file)
            return Governing(self.enclosing.context or DEFAULT, tuple(notes))
        settings = self._without_block() if self.state.kind is None else None
        if settings is None and self.state.action is Action.GET_MODEL and (name := outer_manager(self.call, self.file)):
            return Governing(notes=(f"assumes {name} sets no state dict type",))
        return settings or Governing()

    def _without_block(self) -> Governing | None:
        unseen = unseen_manager(self.call, self.file)
        if unseen:
            return Governing(problem=f"{unseen} may set the state dict type in code this tool cannot see")
        setting = calling_block(self.call, self.file)
        if setting is not None:
            line = self.file.span(setting).line
            return Governing(
                problem=f"this function is called inside the state_dict_type on line {line}, and maybe elsewhere"
            )
        sticky = sticky_context(self.call, self.model, self.file)
        if isinstance(sticky, str):
            return Governing(problem=sticky)
        return Governing(sticky, (sticky.note,) if sticky.note else ()) if sticky is not None else None

    @cached_property
    def full(self) -> Setting:
        """Whether the state is a full one."""
        return self.governing.context.full if self.state.kind is None else self.state.kind is Kind.FULL

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """What has to be true for the call to mean what this tool assumes."""
        receiver = self.receiver.notes if self.enclosing is None and self.is_method else ()
        compiled = (
            ("state dict keys no longer start with _orig_mod., as in files of a compiled FSDP1 model",)
            if self.is_method and is_compiled(self.model, self.file)
            else ()
        )
        return (*receiver, *self.governing.notes, *compiled)

    @cached_property
    def rank_zero_reads(self) -> bool:
        """Whether rank 0 alone reads what the call returns."""
        return only_on_rank_zero(self.call, self.file)

    @cached_property
    def is_under_rank_zero(self) -> bool:
        """Whether rank 0 alone reaches the call."""
        return is_under_rank_zero(self.call, self.file)

    @cached_property
    def is_shown_sharded(self) -> bool:
        """Whether settings or the code around show that the model is sharded, so that there is a process group."""
        return self.governing.context is not DEFAULT or is_shown_sharded(self.model, self.call, self.file)

    @cached_property
    def load(self) -> Load | None:
        """The load_state_dict of the optimizer that takes the result, None where none certainly does."""
        return None if self.state.loads else find_load(self.state, self.file)


@once
def state_site(call: cst.Call, file: File) -> StateSite | None:
    """The place of ``call``, None where it neither takes nor loads a state."""
    state = state_call(call, file)
    return StateSite(state, file) if state is not None else None
