"""What becomes of a call that takes a state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import takewhile
from textwrap import indent

import libcst as cst

from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.printing import depth, is_embedded, line_with
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.origin import may_have_group
from fsdp_rules.model.resharding import reshard_before
from fsdp_rules.model.sharded import wrapper_of
from fsdp_rules.model.summoned import gathers_all_of, is_summoned
from fsdp_rules.model.wrap_given import wrap_given
from fsdp_rules.model.wrappers import other_wrapper
from fsdp_rules.project.project import Certainty
from fsdp_rules.settings import LINE_LENGTH
from fsdp_rules.state._governing.calls import Action, calls_in, state_call
from fsdp_rules.state._governing.on_one_rank import is_on_rank_zero_alone
from fsdp_rules.state._governing.state_settings import Config
from fsdp_rules.state._writing.base import CLOSURELESS, HELPERS, Writer, each_tensor, refuse
from fsdp_rules.state._writing.options import Gathered, gathering, setting_text
from fsdp_rules.state._writing.outliving import may_outlive_a_step
from fsdp_rules.state._writing.pickled import is_pickled
from fsdp_rules.state._writing.shared_options import OPTIM_OPTION_NAMES, OPTION_NAMES, shared_options
from fsdp_rules.verdict.diagnosis import Build, Diagnosis, Edit, InsertAfter, InsertBefore, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.sentence import sentence

#: FSDP1's rank 0 is the first of the model's own process group; there may be several such groups (model parallelism).
OF_ALL = "assumes the model's process_group contains every rank (only global rank 0 gets the state)"
ALONE = "only rank 0 reaches it: FSDP1's inner module returned this rank's shard, but FSDP2 waits for all ranks"
GATHERED = "unchanged: summon_full_params gathers this state, which get_model_state_dict refuses if it is empty"
COPIED = "copies the state (FSDP1 returns a copy; FSDP2's state changes with the next step)"
OBJECTS = "get_optimizer_state_dict raises an error for groups that contain a torch.dtype or torch.device, as here"
LIVE = "under NO_SHARD, FSDP1's state shares tensors with the optimizer, so it changes with the next step"
AS_MEANT = (
    "to get the intended behaviour, use copy.deepcopy(get_optimizer_state_dict(model, optimizer)), which no step "
    "changes. "
    "Only --to shim keeps FSDP1's numbers"
)
NOT_LIVE = "assumes it is not loaded in this run under NO_SHARD, where FSDP1's state changes with the next step"
UNSTEPPED = (
    "before the first step, get_optimizer_state_dict runs one with a learning rate of 0, which Adam counts, and "
    "this call may be that early (FSDP1: the state is empty)"
)
#: The step counters of an optimizer are no DTensors: a gathered state shares them with the optimizer.
COUNTERS = " and value.dim() == 0"
#: What runs a part of itself later, or not at all.
PARTLY = cst.Lambda | cst.IfExp | cst.BooleanOperation | cst.BaseComp | cst.DictComp | cst.NamedExpr


class Taking(Writer):
    """Writes the verdict about a call that takes a model's or an optimizer's state."""

    def diagnosis(self) -> Diagnosis:
        """The verdict."""
        optim = self.state.optim
        if self._is_gathered():
            return Diagnosis(self.state.call, Level.SAFE, GATHERED, claims=(self.state.call.func,))
        if self.state.action is Action.GET_MODEL or optim is None:
            config, arguments = self.context.model_config, [self.model]
        else:
            config, arguments = self.context.optim_config, [self.model, lambda code: code(optim)]
        return self._taken(self.state.config or config, arguments)

    def _taken(self, config: Config, arguments: list[Build]) -> Diagnosis:
        if self._lacks_ranks():
            if self._is_surely_sharded() and other_wrapper(self.site.model, self.file) is Certainty.NO:
                return refuse(self.state, ALONE)
            self.notes.append("assumes every rank runs this line if the model is sharded")
        if self.outlives and self.state.action is Action.GET_OPTIM and self.is_whole:
            is_loaded = known_as("loaded_again", self.state.call.func, self.file)
            if is_loaded and wrap_given(self.site.model, self.file).is_whole() is Certainty.YES:
                return replace(refuse(self.state, LIVE), advice=AS_MEANT)
            self.notes.append(NOT_LIVE)
        if self.outlives:
            self.remarks.append(COPIED)
        gathered = gathering(self.full, config, self.site.rank_zero_reads, self.file)
        if gathered.note:
            self.notes.append(gathered.note)
        if self.state.action is Action.GET_MODEL and not self.site.rank_zero_reads and self._has_own_group(gathered):
            if self.file.project.values.has_subgroup:
                return refuse(self.state, "only global rank 0 would get the state, and the model uses a subgroup")
            self.notes.append(OF_ALL)
        if self.full is False and is_pickled(self.state.call, self.file):
            self.notes.append("each rank's file has DTensors (FSDP1 without a device_mesh: ShardedTensors)")
        if self._refuses_groups(gathered):
            return self._by_helper(gathered, arguments, OBJECTS)
        if self.state.action is Action.GET_OPTIM and known_as("unstepped", self.state.call.func, self.file):
            return self._by_helper(gathered, arguments, UNSTEPPED)
        if self.state.optim is not None and known_as("closureless", self.state.optim, self.file):
            return self._by_helper(gathered, arguments, CLOSURELESS)
        if gathered.everywhere is not False:
            return self._everywhere(gathered, arguments)
        get = self.function()
        if self.outlives and self.full is True and not self.is_whole:
            counted = self._moved(get, arguments, gathered.options, "clone()", COUNTERS)
            if counted is not None:
                return self.done(counted)
        kept = self._kept()
        name = self._named(get, arguments, gathered.options)
        if not name:
            return self.replaced(lambda code: kept(self.call(get, arguments, gathered.options, code)))
        call = Replace(self.state.call, lambda code: kept(self.call(get, arguments, lambda _: f"options={name}", code)))
        first: Build = lambda code: f"{name} = {gathered.options(code).removeprefix('options=')}"  # noqa: E731
        return self.done([InsertBefore(self.file.statement(self.state.call), first), call])

    def _refuses_groups(self, gathered: Gathered) -> bool:
        """Whether torch gathers, or moves, groups that hold what it does not know: a dtype, or a device."""
        is_moved = self.full is not False or "cpu_offload" in gathered.options(self.file.code)
        return self.state.action is Action.GET_OPTIM and is_moved and "optimizer_objects" in self.file.project.flags

    def _by_helper(self, gathered: Gathered, arguments: list[Build], why: str) -> Diagnosis:
        is_plain = self.full is False or (self.full is True and isinstance(gathered.everywhere, bool))
        if not self.file.settings.may_help or not is_plain:
            return Diagnosis(
                self.state.call,
                Level.MANUAL,
                why,
                f"use {HELPERS[Action.GET_OPTIM]}",
                claims=(self.state.call.func,),
            )
        helper = self.file.ref(HELPERS[Action.GET_OPTIM])
        is_on_first = "cpu_offload" in gathered.options(self.file.code)
        kept = "rank0_only=True" if is_on_first else "" if gathered.everywhere is True else "offload_to_cpu=False"
        kept = "full=False" if self.full is False else kept
        taken = self.replaced(lambda code: self.call(helper, arguments, lambda _: kept, code), self.site.sure)
        message = sentence(f"{HELPERS[Action.GET_OPTIM]} returns the state", why, *self.notes)
        return replace(taken, message=message)

    def _is_gathered(self) -> bool:
        """Whether a method takes the state of a model in the helper's block that has gathered it."""
        is_plain = self.block is None and self.site.is_method and self.state.action is Action.GET_MODEL
        return is_plain and self.file.settings.may_help and gathers_all_of(self.site.model, self.file)

    def _lacks_ranks(self) -> bool:
        """Whether a state of shards is taken where rank 0 alone is, and nothing has gathered them."""
        call, file = self.state.call, self.file
        if self.block is not None or self.is_whole or is_summoned(call, file):
            return False
        return is_on_rank_zero_alone(call, file)

    def _is_surely_sharded(self) -> bool:
        """Whether the model is sharded for sure, or the ``module`` of what may be: no plain model has one."""
        return wrapper_of(self.site.model, self.file) is not None or not self.site.receiver.notes

    def _has_own_group(self, gathered: Gathered) -> bool:
        """Whether rank 0 alone gets a full state, and the project gives its models a process group."""
        whole_on_cpu = self.full is not False and "cpu_offload" in gathered.options(self.file.code)
        has_groups = "own_group" in self.file.project.flags
        return whole_on_cpu and has_groups and may_have_group(self.site.model, self.file)

    def _named(self, function: str, arguments: list[Build], options: Build) -> str:
        """The name that the options get in a statement of their own, "" where they stay in the call."""
        file, call = self.file, self.state.call
        statement = file.statement(call)
        if not is_embedded(call, file) or not options(file.code) or not isinstance(statement, cst.BaseSmallStatement):
            return ""
        text = self.call(function, arguments, options, file.code)
        if line_with(text, call, self.block is not None, file) <= LINE_LENGTH:
            return ""
        if self.block is not None and shared_options(self.block, file):
            return ""
        states = [state_call(entry, file) for entry in file.nodes(cst.Call) if file.statement(entry) is statement]
        if [state.action for state in states if state is not None].count(self.state.action) > 1:
            return ""
        return file.fresh(statement, *(OPTION_NAMES if self.state.action is Action.GET_MODEL else OPTIM_OPTION_NAMES))

    @cached_property
    def is_whole(self) -> bool:
        """Whether a full state may be the live tensors themselves, with nothing to gather."""
        return wrap_given(self.site.model, self.file).is_whole() is not Certainty.NO

    @cached_property
    def outlives(self) -> bool:
        """Whether FSDP1's copies may be read after a later step, and FSDP2 would give live tensors."""
        shares = self.full is not True or self.state.action is Action.GET_OPTIM or self.is_whole
        return shares and may_outlive_a_step(self.state.call, self.file)

    def _kept(self) -> Callable[[str], str]:
        """What writes a state that has tensors of its own where they may be needed."""
        if not self.outlives:
            return lambda text: text
        if self.state.action is Action.GET_MODEL and not self.is_whole and "buffers" in self.file.project.flags:
            # FSDP1's state shares the buffers with the model, whatever type it has.
            kind = self.file.ref("torch.distributed.tensor.DTensor")
            return lambda text: self._each(text, f"tensor.clone() if isinstance(tensor, {kind}) else tensor")
        copied = self.file.ref("copy.deepcopy")
        return lambda text: f"{copied}({text})"

    def _everywhere(self, gathered: Gathered, arguments: list[Build]) -> Diagnosis:
        get, everywhere = self.function(), gathered.everywhere
        asked: Build = lambda code: "" if everywhere is True else setting_text(everywhere, code)  # noqa: E731
        if self.state.action is Action.GET_MODEL:
            self.notes.append("each rank has the full state on its device before it is copied to the CPU")
            own = self._kept()
            return self.replaced(
                lambda code: self._on_cpu(own(self.call(get, arguments, gathered.options, code)), asked(code))
            )
        if not self.file.settings.prefers_helpers:
            # What is on the CPU already is not copied by cpu().
            method = 'to("cpu", copy=True)' if self.outlives and everywhere is True else "cpu()"
            moved = self._moved(get, arguments, gathered.options, method, asked=asked)
            if moved is not None:
                return self.done(moved)
        if self.file.settings.may_help and everywhere is True:
            helper = self.file.ref(HELPERS[Action.GET_OPTIM])
            self.notes.append("every rank gets the full state in CPU memory, as under FSDP1 by default")
            return self.replaced(lambda code: self.call(helper, arguments, lambda code: "", code), self.site.sure)
        self.notes.append("the full state is kept on its device (FSDP1: moved to the CPU)")
        kept = self._kept()
        return self.replaced(lambda code: kept(self.call(get, arguments, gathered.options, code)))

    def _moved(
        self, get: str, arguments: list[Build], options: Build, method: str, more: str = "", asked: Build = lambda _: ""
    ) -> list[Edit] | None:
        """The edits that take the state of an optimizer and move or copy its tensors; None where none can stand."""
        file, call = self.file, self.state.call
        statement, parent = file.statement(call), file.parent(call)
        if not isinstance(statement, cst.BaseSmallStatement) or isinstance(statement, cst.Assert):
            return None
        if any(
            isinstance(around, PARTLY) for around in takewhile(lambda one: one is not statement, file.ancestors(call))
        ):
            return None
        loop = each_tensor(method, statement, file, more)
        # Other ranks than 0 have an empty state then.
        has_states = "cpu_offload" not in options(file.code)

        def moved(state: str) -> str:
            condition, text = (
                asked(file.code),
                loop(f'{state}["state"]' if has_states else f'{state}.get("state", {{}})'),
            )
            return f"if {condition}:\n{indent(text, '    ')}" if condition else text

        kept = self._kept() if asked(file.code) else str
        taken = Replace(call, lambda code: kept(self.call(get, arguments, options, code)))
        targets = statement.targets if isinstance(statement, cst.Assign) and parent is statement else ()
        if len(targets) == 1 and is_repeatable(targets[0].target):
            return [taken, InsertAfter(statement, lambda code: moved(file.code(targets[0].target)))]
        name = file.fresh(statement, "optim_state", "optimizer_state", "optim_state_dict")
        first: Build = lambda code: f"{name} = {kept(self.call(get, arguments, options, code))}\n{moved(name)}"  # noqa: E731
        edits: list[Edit] = [InsertBefore(statement, first), Replace(call, lambda code: name)]
        before = takewhile(lambda one: one is not call, calls_in(statement))
        # The state of the model, which shards it, is taken after this one then.
        if any(one.action is Action.GET_MODEL for one in filter(None, (state_call(each, file) for each in before))):
            return [reshard_before(statement, self.site.model, file), *edits] if self.may_be_gathered() else edits
        return edits

    def _on_cpu(self, call: str, asked: str) -> str:
        return self._each(call, f"tensor.cpu(){f' if {asked} else tensor' * bool(asked)}")

    def _each(self, call: str, value: str) -> str:
        """The state that ``call`` returns with ``value`` for each tensor."""
        parts = (f"name: {value}", f"for name, tensor in {call}.items()")
        text = f"{{{' '.join(parts)}}}"
        if self.file.span(self.state.call).column + len(text) <= LINE_LENGTH and "\n" not in text:
            return text
        margin = " " * depth(self.state.call, self.file)
        lines = [f"{margin}    {line}" for part in parts for line in part.split("\n")]
        return "{\n" + "\n".join(lines) + f"\n{margin}}}"
