"""What becomes of a call that loads a state."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fsdp_rules.file.expressions import is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.model.flowing import is_doubled, known_as, value_of
from fsdp_rules.model.origin import may_have_group
from fsdp_rules.model.resharding import reshard_before
from fsdp_rules.project.flow import Certainty
from fsdp_rules.state._governing.calls import Action, calls_in, state_call
from fsdp_rules.state._governing.loading import result_is_read
from fsdp_rules.state._writing.base import CLOSURELESS, HELPERS, Writer, each_tensor, refuse
from fsdp_rules.state._writing.dcp_imports import reads_in_place
from fsdp_rules.state._writing.options import options_text, setting_text
from fsdp_rules.state._writing.pickled import is_unpickled
from fsdp_rules.verdict.diagnosis import (
    Build,
    Diagnosis,
    Edit,
    InsertAfter,
    InsertBefore,
    Replace,
    ReplaceStatement,
    remove,
)
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.sentence import sentence

#: Why a load is not sent from rank 0, whose file is another one.
OF_A_RANK = (
    "assumes the files of all ranks have the same values for sharded tensors, since each rank cuts its own shard"
)
#: Of the forms with the same numbers it takes the least memory (docs/costs.md).
SENT = "broadcast_from_rank0 gives the lowest memory peak"
#: As it visits a module once, the values under its other names stay whole tensors, which no shard takes.
DOUBLED = "set_model_state_dict fails on a full state of a model that has one module under several names"


class Putting(Writer):
    """Writes the verdict about a call that puts a state into a model or an optimizer."""

    def diagnosis(self) -> Diagnosis:
        """The verdict."""
        return self._set_model() if self.state.action is Action.SET_MODEL else self._set_optim()

    def _set_model(self) -> Diagnosis:
        state = self.state.state
        assert state is not None
        settings: dict[str, Build] = {}
        if self.full is not False and is_doubled(self.site.model, self.file):
            return refuse(self.state, DOUBLED)
        if self.full is not False:
            full = self._full_load()
            settings = {"full_state_dict": full}
            is_ranked = known_as("ranked", state, self.file)
            if is_ranked:
                self.notes.append(OF_A_RANK)
            if self.block is None and self.site.is_under_rank_zero:
                return refuse(self.state, "only rank 0 reaches it, and a sharded model is loaded on every rank")
            own = is_ranked or "ignored" in self.file.project.flags
            grouped = not own and self._may_be_grouped()
            if grouped and self.file.project.values.has_subgroup:
                # Rank 0 has no part in another group: each rank cuts its own state, as under FSDP1.
                self.notes.append(
                    "assumes the state has all names, because missing names are only reported with a broadcast"
                )
            elif not own:
                settings["broadcast_from_rank0"] = full
                self.remarks.append(SENT)
                # What is read from one path is the same on all ranks.
                if value_of(state, self.file).loaded is not Certainty.YES:
                    self.notes.append("assumes every rank passes the same state (rank 0 sends its own to all)")
                if grouped:
                    self.notes.append(
                        "assumes the model's process_group contains every rank, since rank 0 sends to all"
                    )
            if "offload" in self.file.project.flags:
                self.notes.append("assumes the model's saved buffers are on the CPU, like its offloaded parameters")
        elif is_unpickled(state, self.file):
            self.notes.append(
                "assumes files with ShardedTensors (FSDP1 without a device_mesh) are converted first (FSDP401)"
            )
        strict = self.state.strict
        lists_missing = False
        if strict is not None:
            settings["strict"] = lambda code: code(strict)
            lists_missing = self.full is not False and result_is_read(self.state.call, self.file)
        # set_model_state_dict leaves the shards in the dictionary that it is given.
        copied = self.full is not False and (lists_missing or not self._is_temporary(state))
        named = lists_missing and not isinstance(state, cst.Name)
        kept = self.file.fresh(self.state.call, "given_state", "state_to_load") if named else ""
        function = self.function()

        def given(code: Code) -> str:
            text = f"{kept} := {code(state)}" if named else code(state)
            return f"dict({text})" if copied else text

        def build(code: Code) -> str:
            text = self.call(function, [self.model, given], self._options(settings), code)
            # FSDP2 loads its own shards where the state has nothing, and so misses no key.
            names = f"[key for key in {self.model(code)}.state_dict() if key not in {kept or code(state)}]"
            return f"{text}._replace(missing_keys={names})" if lists_missing else text

        found = self.replaced(build)
        if self.full is False or not self.may_be_gathered():
            return found
        # torch cuts a full state to the parameters that it finds, and loads them into the sharded ones.
        before = reshard_before(self.file.statement(self.state.call), self.site.model, self.file)
        return replace(found, edits=(before, *found.edits))

    def _is_own(self, state: cst.BaseExpression) -> bool:
        """Whether rank 0 may have other values of a full state than this rank, or cannot send them."""
        if "ignored" in self.file.project.flags or known_as("ranked", state, self.file):
            return True
        return self._may_be_grouped()

    def _may_be_grouped(self) -> bool:
        return "own_group" in self.file.project.flags and may_have_group(self.site.model, self.file)

    def _full_load(self) -> Build:
        """Whether a full state is sent from rank 0 and cut up.

        Where the model may not be sharded there may be no process group: a plain load then takes its place, which
        also looks for missing names.
        """
        if self.site.is_shown_sharded:
            return lambda code: setting_text(self.full, code)
        initialized = f"{self.file.ref('torch.distributed.is_initialized')}()"
        return lambda code: initialized

    def _options(self, settings: dict[str, Build]) -> Build:
        options_text(self.file, full_state_dict="True")
        return lambda code: options_text(self.file, **{name: value(code) for name, value in settings.items()})

    def _is_temporary(self, state: cst.BaseExpression) -> bool:
        """Whether nothing reads the dictionary ``state`` after this call."""
        file, key = self.file, ""
        if isinstance(state, cst.Subscript):
            key = file.code(state)
            state = state.value
        if isinstance(state, cst.Call):
            return True
        found = file.binding(state)
        if not isinstance(state, cst.Name) or found is None or not isinstance(found.value, cst.Call):
            return False
        for ancestor in file.ancestors(self.state.call):
            if isinstance(ancestor, cst.For | cst.While) and ancestor not in set(file.ancestors(found.statement)):
                return False
        line = file.span(self.state.call).end_line
        later = [use for use in file.uses(state.value) if file.span(use).line > line]
        return all(self._reads_another_key(use, key) for use in later)

    def _reads_another_key(self, use: cst.Name, key: str) -> bool:
        parent = self.file.parent(use)
        if isinstance(parent, cst.Del):
            return True
        literal = isinstance(parent, cst.Subscript) and '"' in self.file.code(parent).replace("'", '"')
        return bool(key) and literal and parent is not None and self.file.code(parent) != key

    def _set_optim(self) -> Diagnosis:
        load = self.site.load
        optim = load.target if load is not None else self.state.optim
        if load is None and not self.state.loads and not result_is_read(self.state.call, self.file):
            return self._never_loaded()
        is_closureless = optim is not None and known_as("closureless", optim, self.file)
        if is_closureless and self.state.loads:
            return refuse(self.state, CLOSURELESS)
        if optim is None or is_closureless or (load is None and not self.state.loads):
            return self._to_load(optim)
        if self.state.loads and not isinstance(self.file.parent(self.state.call), cst.Expr):
            return refuse(self.state, "its result is used, although load_directly already loads the state")
        function, statement = self.function(), self.file.statement(self.state.call)
        named = "" if is_repeatable(optim) else self.file.fresh(statement, "loaded_optimizer", "resumed_optimizer")
        edits: list[Edit] = [InsertBefore(statement, lambda code: f"{named} = {code(optim)}")] if named else []
        if self.full is not False and known_as("unscheduled", self.state.call.func, self.file):
            # torch fails on an entry of the saved groups that these lack, which only a scheduler adds.
            filled = 'for group in {}.param_groups:\n    group.setdefault("initial_lr", group["lr"])'
            edits.append(InsertBefore(statement, lambda code: filled.format(named or code(optim))))
        text = self._set_text(function, (lambda code: named) if named else (lambda code: code(optim)))
        if self._shares_tensors():
            owned = each_tensor("clone()", statement, self.file)
            edits.append(InsertAfter(statement, lambda code: owned(f"{named or code(optim)}.state")))
        if load is None:
            return self.done([Replace(self.state.call, text), *edits])
        if any(argument.value is self.state.call for argument in load.call.args):
            edits.append(Replace(load.call, text))
        else:
            edits.append(ReplaceStatement(statement, text))
            if load.makers[0] is self.state.call:
                edits.append(remove(load.statement))
                edits += [] if load.deleted is None else [remove(load.deleted)]
        return self.done(edits, self.site.sure)

    def _shares_tensors(self) -> bool:
        """Whether the state may hold one tensor twice, or go on to be read: not that of the optimizer itself.

        FSDP1 gives all parameters of a flat one the same step counter, and FSDP2 loads a counter as it is.
        """
        file, state = self.file, self.state.state
        if self.full is not False or state is None or is_unpickled(state, file):
            return True
        function = file.function(self.state.call)
        calls = calls_in(function.body) if function is not None else file.nodes(cst.Call)
        return not any(_takes_optimizer(call, file) or reads_in_place(call, file) for call in calls)

    def _set_text(self, function: str, optim: Build) -> Build:
        state = self.state.state
        assert state is not None
        settings: dict[str, Build] = {}
        if self.full is not False:
            settings = {"full_state_dict": lambda code: setting_text(self.full, code)}
            rank0 = self.context.optim_config.rank0_only if self.state.kind is None else self.state.broadcast
            if rank0 is True:
                settings["broadcast_from_rank0"] = settings["full_state_dict"]
            elif rank0 is not False:
                settings["broadcast_from_rank0"] = rank0.text
            elif value_of(state, self.file).loaded is Certainty.YES and not self._is_own(state):
                settings["broadcast_from_rank0"] = self._full_load()
                self.remarks.append(SENT)
        arguments: list[Build] = [
            self.model,
            optim,
            lambda code: f"optim_state_dict={code(state)}",
        ]
        return lambda code: self.call(function, arguments, self._options(settings), code)

    def _to_load(self, optim: cst.BaseExpression | None) -> Diagnosis:
        """What another function, or a later line, loads. Without ``optim`` it is in the order of the parameters."""
        state = self.state.state
        assert state is not None
        if not self.file.settings.may_help:
            return refuse(self.state, "it needs fsdp_compat.optim_state_dict_to_load, but '--helpers never' forbids it")
        if not self.state.broadcast and self.context.optim_config.rank0_only is not False:
            self.notes.append("assumes every rank has the state (FSDP1: only rank 0)")
        helper = self.file.ref(HELPERS[Action.SET_OPTIM])
        held: Build = (lambda code: "None") if optim is None else (lambda code: code(optim))
        arguments: list[Build] = [self.model, held, lambda code: code(state)]
        if self.state.broadcast:
            arguments.append(lambda code: "rank0_only=True")
        taken = self.replaced(lambda code: self.call(helper, arguments, lambda code: "", code))
        said = f"{HELPERS[Action.SET_OPTIM]} returns the state that load_state_dict takes"
        return replace(taken, message=sentence(said, *self.remarks, *self.notes))

    def _never_loaded(self) -> Diagnosis:
        return Diagnosis(
            self.state.call,
            Level.MANUAL,
            f"the result of {self.state.name} is never loaded, so the optimizer starts without its state",
            "call set_optimizer_state_dict(model, optimizer, optim_state_dict=..., options=...) if it should "
            "be loaded, or remove the call",
            claims=(self.state.call.func,),
        )


def _takes_optimizer(call: cst.Call, file: File) -> bool:
    found = state_call(call, file)
    return found is not None and found.action is Action.GET_OPTIM
