"""What becomes of a call that reads or loads a state, once it is known what governs it."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.diagnosis import Build, Code, Diagnosis, Edit, InsertBefore, Replace, ReplaceStatement, remove
from fsdp_rules.finding import Level
from fsdp_rules.project import Certainty
from fsdp_rules.source import File, dotted
from fsdp_rules.state.calls import Action, StateCall, state_call
from fsdp_rules.state.context import Config, Context
from fsdp_rules.state.files import is_pickled, is_unpickled
from fsdp_rules.state.guards import only_on_rank_zero
from fsdp_rules.state.layout import LINE_LENGTH, broken, depth, is_embedded, line_with
from fsdp_rules.state.loading import find_load, result_is_read
from fsdp_rules.state.options import Gathered, gathering, options_text, setting_text
from fsdp_rules.state.shared import OPTIM_OPTION_NAMES, OPTION_NAMES, is_full, shared_name, shared_options

HELPERS = {Action.GET_OPTIM: "fsdp_compat.optim_state_dict", Action.SET_OPTIM: "fsdp_compat.optim_state_dict_to_load"}
BY_HAND = "use {name} of torch.distributed.checkpoint.state_dict"


def refuse(state: StateCall, problem: str) -> Diagnosis:
    """The verdict that leaves ``state`` to the reader because of ``problem``."""
    return Diagnosis(
        state.call,
        Level.MANUAL,
        f"{state.name} cannot be rewritten: {problem}",
        BY_HAND.format(name=state.action.value),
        claims=(state.call.func,),
    )


#: Words of a function that writes what it gathers.
SAVES = re.compile(r"save|write|dump|upload", re.IGNORECASE)


class Writer:
    """Writes the verdict about one call."""

    def __init__(
        self, state: StateCall, context: Context, block: cst.With | None, notes: list[str], file: File
    ) -> None:
        self.state = state
        self.context = context
        self.block = block
        self.notes = notes
        self.file = file
        self.full = is_full(state, context)
        self.model: Build = lambda code: code(state.model)

    def diagnosis(self) -> Diagnosis:
        """The verdict, by what the call does."""
        match self.state.action:
            case Action.GET_MODEL:
                return self._get(self._config(self.context.model_config), [self.model])
            case Action.GET_OPTIM:
                optim = self.state.optim
                assert optim is not None
                return self._get(self._config(self.context.optim_config), [self.model, lambda code: code(optim)])
            case Action.SET_MODEL:
                return self._set_model()
            case Action.SET_OPTIM:
                return self._set_optim()

    def _config(self, default: Config) -> Config:
        return self.state.config or default

    def _get(self, config: Config, arguments: list[Build]) -> Diagnosis:
        gathered = gathering(self.full, config, only_on_rank_zero(self.state.call, self.file), self.file)
        if gathered.note:
            self.notes.append(gathered.note)
        if self.full is False and is_pickled(self.state.call, self.file):
            self.notes.append("each rank's file holds DTensors, where FSDP1 without a device_mesh wrote ShardedTensors")
        if gathered.everywhere:
            return self._everywhere(gathered, arguments)
        if self.state.action is Action.GET_OPTIM and not self._is_saved():
            self.notes.append("it is saved before training goes on, since step counts in it are the live ones")
        get = self._function()
        name = self._named(get, arguments, gathered.options)
        if not name:
            return self._replace(lambda code: self._call(get, arguments, gathered.options, code))
        call = Replace(self.state.call, lambda code: self._call(get, arguments, lambda _: f"options={name}", code))
        first: Build = lambda code: f"{name} = {gathered.options(code).removeprefix('options=')}"  # noqa: E731
        return self._done([InsertBefore(self.file.statement(self.state.call), first), call])

    def _named(self, function: str, arguments: list[Build], options: Build) -> str:
        """The name that the options get in a statement of their own, "" where they stay in the call."""
        file, call = self.file, self.state.call
        statement = file.statement(call)
        if not is_embedded(call, file) or not options(file.code) or not isinstance(statement, cst.BaseSmallStatement):
            return ""
        text = self._call(function, arguments, options, file.code)
        if line_with(text, call, self.block is not None, file) <= LINE_LENGTH:
            return ""
        if self.block is not None and shared_options(self.block, file):
            return ""
        states = [state_call(entry, file) for entry in file.nodes(cst.Call) if file.statement(entry) is statement]
        if [state.action for state in states if state is not None].count(self.state.action) > 1:
            return ""
        return file.fresh(statement, *(OPTION_NAMES if self.state.action is Action.GET_MODEL else OPTIM_OPTION_NAMES))

    def _is_saved(self) -> bool:
        """Whether the function around the call looks as if it wrote the state to a file."""
        function = self.file.function(self.state.call)
        return function is None or SAVES.search(self.file.code(function)) is not None

    def _everywhere(self, gathered: Gathered, arguments: list[Build]) -> Diagnosis:
        get = self._function()
        if self.state.action is Action.GET_MODEL:
            self.notes.append("each rank holds the full state on its device before it goes to the CPU")
            return self._replace(lambda code: self._on_cpu(self._call(get, arguments, gathered.options, code)))
        if self.file.settings.helpers:
            helper = self.file.ref(HELPERS[Action.GET_OPTIM])
            self.notes.append("every rank gets the full state in CPU memory, as FSDP1's default was")
            return self._replace(lambda code: self._call(helper, arguments, lambda code: "", code), Level.SAFE)
        self.notes.append("the full state stays on its device, where FSDP1 moved it to the CPU")
        return self._replace(lambda code: self._call(get, arguments, gathered.options, code))

    def _on_cpu(self, call: str) -> str:
        parts = ("name: tensor.cpu()", f"for name, tensor in {call}.items()")
        text = f"{{{' '.join(parts)}}}"
        if self.file.span(self.state.call).column + len(text) <= LINE_LENGTH and "\n" not in text:
            return text
        margin = " " * depth(self.state.call, self.file)
        lines = [f"{margin}    {line}" for part in parts for line in part.split("\n")]
        return "{\n" + "\n".join(lines) + f"\n{margin}}}"

    def _set_model(self) -> Diagnosis:
        state = self.state.state
        assert state is not None
        settings: dict[str, Build] = {}
        if self.full is not False:
            full = self._full_load()
            settings = {"full_state_dict": full, "broadcast_from_rank0": full}
            self.notes.append("rank 0 sends its state to the others, which passed the same one")
            if "offload" in self.file.project.flags:
                self.notes.append("the model's saved buffers lie on the CPU like its offloaded parameters")
        elif is_unpickled(state, self.file):
            self.notes.append(
                "files of ShardedTensors, as FSDP1 writes them without a device_mesh, are saved anew first (FSDP401)"
            )
        strict = self.state.strict
        if strict is not None:
            settings["strict"] = lambda code: code(strict)
            if self.full is not False and not isinstance(self.file.parent(self.state.call), cst.Expr):
                self.notes.append("nothing depends on the missing_keys that it returns, which are empty from now on")
        # set_model_state_dict leaves the shards in the dictionary that it is given.
        copied = self.full is not False and not self._is_temporary(state)
        function = self._function()
        arguments: list[Build] = [self.model, lambda code: f"dict({code(state)})" if copied else code(state)]
        return self._replace(lambda code: self._call(function, arguments, self._options(settings), code))

    def _full_load(self) -> Build:
        """Whether a full state is sent from rank 0 and cut up.

        In a class that shards its model only sometimes, there may be no ranks; a plain load then takes its place, which
        also looks for missing names.
        """
        name = dotted(self.state.model) or ""
        if self.block is not None or not name.startswith("self.") or self.file.holds(self.state.model) is Certainty.YES:
            return lambda code: setting_text(self.full, code)
        initialized = f"{self.file.ref('torch.distributed.is_initialized')}()"
        if self.full is True:
            return lambda code: initialized
        return lambda code: f"{setting_text(self.full, code)} and {initialized}"

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
        load = None if self.state.loads else find_load(self.state, self.file)
        optim = load.target if load is not None else self.state.optim
        if load is None and not self.state.loads and not result_is_read(self.state.call, self.file):
            return self._never_loaded()
        if optim is None:
            return refuse(self.state, "it names no optimizer, and none certainly loads the result")
        if load is None and not self.state.loads:
            return self._to_load(optim)
        if self.state.loads and not isinstance(self.file.parent(self.state.call), cst.Expr):
            return refuse(self.state, "its result is used although it loads already")
        function = self._function()
        text = self._set_text(function, optim)
        if load is None:
            return self._replace(text)
        edits: list[Edit] = []
        node: cst.BaseExpression = load.call
        if load.makers and any(argument.value is self.state.call for argument in load.call.args):
            edits.append(Replace(node, text))
        else:
            edits.append(ReplaceStatement(self.file.statement(self.state.call), text))
            if load.makers[0] is self.state.call:
                edits.append(remove(load.statement))
        return self._done(edits, Level.SAFE)

    def _set_text(self, function: str, optim: cst.BaseExpression) -> Build:
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
        arguments: list[Build] = [
            self.model,
            lambda code: code(optim),
            lambda code: f"optim_state_dict={code(state)}",
        ]
        return lambda code: self._call(function, arguments, self._options(settings), code)

    def _to_load(self, optim: cst.BaseExpression) -> Diagnosis:
        state = self.state.state
        assert state is not None
        if not self.file.settings.helpers:
            return refuse(self.state, "it needs fsdp_compat.optim_state_dict_to_load, which --no-helpers forbids")
        if self.state.broadcast or self.context.optim_config.rank0_only is not False:
            self.notes.append("every rank needs the state, which FSDP1 took from rank 0")
        helper = self.file.ref(HELPERS[Action.SET_OPTIM])
        arguments: list[Build] = [self.model, lambda code: code(optim), lambda code: code(state)]
        return self._replace(lambda code: self._call(helper, arguments, lambda code: "", code))

    def _never_loaded(self) -> Diagnosis:
        return Diagnosis(
            self.state.call,
            Level.MANUAL,
            f"the result of {self.state.name} is never loaded, so the optimizer starts without its state",
            "if it should be loaded: set_optimizer_state_dict(model, optimizer, optim_state_dict=..., options=...); "
            "if not, remove the call",
            claims=(self.state.call.func,),
        )

    def _function(self) -> str:
        return self.file.ref(self.state.action.full_name)

    def _call(self, function: str, arguments: list[Build], options: Build, code: Code) -> str:
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

    def _replace(self, build: Build, level: Level | None = None) -> Diagnosis:
        return self._done([Replace(self.state.call, build)], level)

    def _done(self, edits: list[Edit], level: Level | None = None) -> Diagnosis:
        done = {
            Action.GET_MODEL: "the state is gathered by get_model_state_dict",
            Action.SET_MODEL: "the state is loaded by set_model_state_dict",
            Action.GET_OPTIM: "the optimizer's state is gathered by name",
            Action.SET_OPTIM: "the optimizer's state is loaded by name",
        }[self.state.action]
        if level is None:
            level = Level.REVIEW if self.notes else Level.SAFE
        return Diagnosis(
            self.state.call,
            level,
            "; ".join([done, *self.notes]),
            edits=tuple(edits),
            claims=(self.state.call.func,),
            consumes=self.context.consumes,
        )
