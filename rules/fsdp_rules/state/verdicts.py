"""What becomes of a call that reads or loads a state, given the settings that govern it."""

from __future__ import annotations

from collections import Counter

import libcst as cst

from fsdp_rules.diagnosis import Build, Code, Diagnosis, Edit, Replace, ReplaceStatement, remove
from fsdp_rules.finding import Level
from fsdp_rules.project import Certainty
from fsdp_rules.source import File, dotted
from fsdp_rules.state.blocks import block_problem
from fsdp_rules.state.calls import Action, StateCall, calls_in, state_call
from fsdp_rules.state.context import (
    DEFAULT,
    Config,
    Context,
    Kind,
    Same,
    Setting,
    governing_with,
    read_context,
    same_model,
    unseen_contexts,
)
from fsdp_rules.state.guards import only_on_rank_zero
from fsdp_rules.state.loading import find_load, result_is_read
from fsdp_rules.state.options import Gathered, gathering, options_text, setting_text
from fsdp_rules.state.sticky import is_set_before, sticky_context
from fsdp_rules.wrapping import held_at

LINE_LENGTH = 100
HELPERS = {Action.GET_OPTIM: "fsdp_compat.optim_state_dict", Action.SET_OPTIM: "fsdp_compat.optim_state_dict_to_load"}
BY_HAND = "use {name} of torch.distributed.checkpoint.state_dict"


def verdict(state: StateCall, file: File) -> Diagnosis | None:
    """The verdict about ``state``; None where it is no FSDP1 model's state, or its ``with`` block speaks for it."""
    notes: list[str] = []
    context, block = DEFAULT, None
    method = state.action in (Action.GET_MODEL, Action.SET_MODEL)
    for around, call in governing_with(state.call, file):
        found = read_context(call, file)
        if found is None or found.subject is None:
            return None
        same = same_model(found.subject, state.model, file)
        if same is Same.NO and method:
            continue
        if same is not Same.YES:
            notes.append(f"{file.code(state.model)} is taken to be {file.code(found.subject)}")
        context, block = found, around
        notes += [found.note] if found.note else []
        break
    if block is not None and block_problem(block, file) is not None:
        return None
    if block is None:
        unseen = _is_unseen(state, file) if state.kind is None else ""
        if method and not is_set_before(state.call, state.model, file) and not _is_model(state, file, notes):
            return None
        if unseen:
            return _refuse(state, f"{unseen} may set the kind of state, and does so out of sight")
        sticky = sticky_context(state.call, state.model, file) if state.kind is None else None
        if isinstance(sticky, str):
            return _refuse(state, sticky)
        if sticky is not None:
            context = sticky
            notes += [sticky.note] if sticky.note else []
        elif state.action is Action.GET_MODEL:
            notes.append("FSDP1's default was the full state on every rank")
    if state.problem:
        return _refuse(state, state.problem)
    return _Writer(state, context, block, notes, file).diagnosis()


def _is_unseen(state: StateCall, file: File) -> str:
    """The context manager out of sight that may govern ``state``, "" where there is none."""
    unseen = unseen_contexts(file)
    if any(file.scope(call) == file.scope(state.call) for call in unseen):
        return "state_dict_type"
    if not unseen and "handed_context" not in file.project.flags:
        return ""
    model = dotted(state.model) or file.code(state.model)
    for ancestor in file.ancestors(state.call):
        for item in ancestor.items if isinstance(ancestor, cst.With) else ():
            call = item.item
            if isinstance(call, cst.Call) and not (file.resolved(call.func) or "").startswith("torch."):
                given = [dotted(call.func) or "", *(dotted(argument.value) or "" for argument in call.args)]
                if any(text and (model == text or model.startswith(f"{text.partition('.')[0]}.")) for text in given):
                    return file.code(call.func)
    return ""


def _is_model(state: StateCall, file: File, notes: list[str]) -> bool:
    """Whether the receiver of a ``state_dict`` method is an FSDP1 model, or a part of one."""
    name = dotted(state.model)
    if name is None or name in ("self", "cls"):
        return False
    held = held_at(state.model, file)
    if held is Certainty.MAYBE:
        notes.append(f"{name} is taken to be the sharded model")
    if held is not Certainty.NO:
        return True
    owner = state.model.value if isinstance(state.model, cst.Attribute) else None
    while isinstance(owner, cst.Attribute | cst.Name):
        if held_at(owner, file) is Certainty.YES:
            notes.append(f"{name} is taken to be a part of the sharded model")
            return True
        owner = owner.value if isinstance(owner, cst.Attribute) else None
    return False


def _refuse(state: StateCall, problem: str) -> Diagnosis:
    return Diagnosis(
        state.call,
        Level.MANUAL,
        f"{state.name} cannot be rewritten: {problem}",
        BY_HAND.format(name=state.action.value),
        claims=(state.call.func,),
    )


class _Writer:
    def __init__(
        self, state: StateCall, context: Context, block: cst.With | None, notes: list[str], file: File
    ) -> None:
        self.state = state
        self.context = context
        self.block = block
        self.notes = notes
        self.file = file
        self.full = _is_full(state, context)
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
        if gathered.everywhere:
            return self._everywhere(gathered, arguments)
        get = self._function()
        return self._replace(lambda code: self._call(get, arguments, gathered.options, code))

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
        margin = " " * _depth(self.state.call, self.file)
        lines = [f"{margin}    {line}" for part in parts for line in part.split("\n")]
        return "{\n" + "\n".join(lines) + f"\n{margin}}}"

    def _set_model(self) -> Diagnosis:
        state = self.state.state
        assert state is not None
        settings: dict[str, Build] = {}
        if self.full is not False:
            full: Build = lambda code: setting_text(self.full, code)  # noqa: E731
            settings = {"full_state_dict": full, "broadcast_from_rank0": full}
            self.notes.append("rank 0 sends its state to the others, which passed the same one")
            if "offload" in self.file.project.flags:
                self.notes.append("the model's saved buffers lie on the CPU like its offloaded parameters")
        strict = self.state.strict
        if strict is not None:
            settings["strict"] = lambda code: code(strict)
        # set_model_state_dict leaves the shards in the dictionary that it is given.
        copied = self.full is not False and not self._is_temporary(state)
        function = self._function()
        arguments: list[Build] = [self.model, lambda code: f"dict({code(state)})" if copied else code(state)]
        return self._replace(lambda code: self._call(function, arguments, self._options(settings), code))

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
            return _refuse(self.state, "it names no optimizer, and none certainly loads the result")
        if load is None and not self.state.loads:
            return self._to_load(optim)
        if self.state.loads and not isinstance(self.file.parent(self.state.call), cst.Expr):
            return _refuse(self.state, "its result is used although it loads already")
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
            return _refuse(self.state, "it needs fsdp_compat.optim_state_dict_to_load, which --no-helpers forbids")
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
        column = self.file.span(self.state.call).column - (4 if self.block is not None else 0)
        if column + len(text) <= LINE_LENGTH or "\n" in text:
            return text
        margin = " " * _depth(self.state.call, self.file)
        return f"{function}(\n" + "".join(f"{margin}    {part},\n" for part in parts) + f"{margin})"

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


def _is_full(state: StateCall, context: Context) -> Setting:
    """Whether the state is a full one."""
    return context.full if state.kind is None else state.kind is Kind.FULL


def _depth(call: cst.Call, file: File) -> int:
    """By how much the line of ``call`` is indented inside its own statement."""
    line = file.text.splitlines()[file.span(call).line - 1]
    return max(0, len(line) - len(line.lstrip()) - file.span(file.statement(call)).column)


def governed(block: cst.With, file: File) -> list[StateCall]:
    """The calls whose kind of state ``block`` sets."""
    found: list[StateCall] = []
    for call in calls_in(block.body):
        state = state_call(call, file)
        if state is not None and next(governing_with(call, file))[0] is block:
            found.append(state)
    return found


def shared_options(block: cst.With, file: File) -> str:
    """The options that more than one call of ``block`` takes, "" where there are none."""
    counted: Counter[str] = Counter()
    for state in governed(block, file):
        if state.action in (Action.GET_MODEL, Action.GET_OPTIM):
            counted[_gathered_options(state, block, file)] += 1
    del counted[""]
    text, count = counted.most_common(1)[0] if counted else ("", 0)
    return text if count > 1 else ""


def shared_name(block: cst.With, file: File) -> str:
    """The variable that holds the shared options of ``block``."""
    return file.fresh(block, "options", "state_dict_options", "checkpoint_options")


def _gathered_options(state: StateCall, block: cst.With, file: File) -> str:
    for around, call in governing_with(state.call, file):
        context = read_context(call, file)
        if around is not block or context is None or context.subject is None:
            return ""
        method = state.action is Action.GET_MODEL
        if method and same_model(context.subject, state.model, file) is Same.NO:
            return ""
        default = context.model_config if method else context.optim_config
        gathered = gathering(
            _is_full(state, context), state.config or default, only_on_rank_zero(state.call, file), file
        )
        return "" if gathered.everywhere else gathered.options(file.code)
    return ""
