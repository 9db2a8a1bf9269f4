"""What all verdicts about a call on a state have in common, once it is known what governs it."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import broken, depth, is_embedded
from fsdp_rules.file.tree import Code
from fsdp_rules.model.flowing import is_ungraphed
from fsdp_rules.model.passes import may_follow_forward
from fsdp_rules.model.root_parameters import runs_without_graph
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrappers import for_others, other_wrapper
from fsdp_rules.project.project import Certainty
from fsdp_rules.settings import LINE_LENGTH
from fsdp_rules.state._governing.calls import Action, StateCall
from fsdp_rules.state._governing.site import StateSite
from fsdp_rules.state._writing.shared_options import shared_name, shared_options
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, Edit, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.sentence import sentence

HELPERS = {Action.GET_OPTIM: "fsdp_compat.optim_state_dict", Action.SET_OPTIM: "fsdp_compat.optim_state_dict_to_load"}
CLOSURELESS = "torch may call this optimizer's step with closure=None, which it does not accept, or run its step hooks"
COMPARE = "compare the keys, dtypes and peak memory of a first save with those of FSDP1"
BY_HAND = "use {name} of torch.distributed.checkpoint.state_dict"
EARLY = (
    ". Before the first step, use fsdp_compat.optim_state_dict: torch's function runs a step with a learning rate of 0 "
    "there, which Adam counts"
)
SCHEDULED = '. If a scheduler saved "initial_lr" in the groups, set it in the groups of the new optimizer first'

#: What the state of one parameter is called in a loop, the first that is free.
STATE_NAMES = ("state", "param_state", "held_state")


def each_tensor(method: str, statement: cst.CSTNode, file: File, more: str = "") -> Callable[[str], str]:
    """What writes a loop at ``statement``: it puts what the call ``method`` gives in place of each tensor in states.

    ``more``: a further condition on the tensor ``value``.
    """
    state = file.fresh(statement, *STATE_NAMES)
    moves = f"key: value.{method} for key, value in {state}.items() if {file.ref('torch.is_tensor')}(value){more}"
    return lambda states: f"for {state} in {states}.values():\n    {state}.update({{{moves}}})"


def refuse(state: StateCall, problem: str) -> Diagnosis:
    """The verdict that leaves ``state`` to the reader because of ``problem``."""
    return Diagnosis(
        state.call,
        Level.MANUAL,
        f"{state.name} cannot be rewritten: {problem}",
        BY_HAND.format(name=state.action.value)
        + {Action.GET_OPTIM: EARLY, Action.SET_OPTIM: SCHEDULED}.get(state.action, ""),
        claims=(state.call.func,),
    )


class Writer:
    """Writes the verdict about one call."""

    def __init__(self, site: StateSite) -> None:
        self.site = site
        self.state = site.state
        self.context = site.governing.context
        self.block = site.block
        self.notes = list(site.assumptions)
        self.remarks: list[str] = []
        self.file = site.file
        self.full = site.full
        self.model: Build = lambda code: code(site.model)

    def may_be_gathered(self) -> bool:
        """Whether a forward may be the last pass of the model, after which its root is whole."""
        call, model = self.state.call, self.site.model
        if not is_repeatable(model) or not isinstance(self.file.statement(call), cst.BaseSmallStatement):
            return False
        if is_ungraphed(model, self.file) or runs_without_graph(model, self.file):
            return True
        return may_follow_forward(call, self.file, sharded(model, self.file).is_made_here)

    def function(self) -> str:
        """How this file spells the function that takes the call's place."""
        return self.file.ref(self.state.action.full_name)

    def call(self, function: str, arguments: list[Build], options: Build, code: Code) -> str:
        """The call of ``function`` that takes the place of the old one, on as many lines as it needs."""
        given = options(code)
        if given and self.block is not None and given == shared_options(self.block, self.file):
            given = f"options={shared_name(self.block, self.file)}"
        parts = [argument(code) for argument in arguments] + ([given] if given else [])
        text = f"{function}({', '.join(parts)})"
        call, file = self.state.call, self.file
        removed = 4 if self.block is not None else 0
        if file.span(call).column - removed + len(text) <= LINE_LENGTH or "\n" in text:
            return text
        if self.state.action in (Action.GET_MODEL, Action.GET_OPTIM) and is_embedded(call, file):
            return text
        return broken(function, parts, depth(call, file), file.span(file.statement(call)).column - removed)

    def replaced(self, build: Build, level: Level | None = None) -> Diagnosis:
        """The verdict that replaces the call alone."""
        return self.done([Replace(self.state.call, build)], level)

    def done(self, edits: list[Edit], level: Level | None = None) -> Diagnosis:
        """The verdict with these edits; ``review`` where there are notes and no ``level`` is given."""
        done = {
            Action.GET_MODEL: "get_model_state_dict returns the state",
            Action.SET_MODEL: "set_model_state_dict loads the state",
            Action.GET_OPTIM: "get_optimizer_state_dict returns the optimizer state by name",
            Action.SET_OPTIM: "set_optimizer_state_dict loads the optimizer state by name",
        }[self.state.action]
        if level is None:
            level = Level.REVIEW if self.notes else Level.SAFE
        native = Diagnosis(
            self.state.call,
            level,
            sentence(done, *self.remarks, *self.notes),
            COMPARE if level is Level.REVIEW and not any("assumes" in note for note in self.notes) else "",
            edits=tuple(edits),
            claims=(self.state.call.func,),
            consumes=self.context.consumes,
        )
        others = self.site.is_method and other_wrapper(self.site.model, self.file) is not Certainty.NO
        return for_others(native, self.state.call, self.site.model, self.file) if others else native
