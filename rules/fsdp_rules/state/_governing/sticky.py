"""``FSDP.set_state_dict_type``: settings that stay until the next call."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fsdp_rules.file.expressions import literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.file.reaching import runs_before
from fsdp_rules.model.same_model import Same, same_model
from fsdp_rules.project.taking import STATES
from fsdp_rules.state import local_state_dict
from fsdp_rules.state._governing.context import SET_STATE_DICT_TYPE, is_context_call, means_the_same, read_context
from fsdp_rules.state._governing.state_settings import Config, Context, Expression, Kind, Setting

ELSEWHERE = "set_state_dict_type is called in another file of the project, and may affect this call"


@once
def settings_calls(module: cst.Module, file: File) -> list[cst.Call]:
    """Every call of ``set_state_dict_type`` in the file, in order."""
    if "set_state_dict_type" not in file.text:
        return []
    return [call for call in file.inside(module, cst.Call) if is_context_call(call, file, SET_STATE_DICT_TYPE)]


def setting_problem(setting: cst.Call, file: File) -> str:
    """Why a call of ``set_state_dict_type`` stays, "" where it can go: alone, or with what switches back."""
    problem = _own_problem(setting, file)
    subject = _subject(setting, file)
    if problem or subject is None:
        return problem
    for other in settings_calls(file.module, file):
        second = _subject(other, file)
        if other is setting or second is None or file.function(other) is not file.function(setting):
            continue
        if same_model(subject, second, file) is not Same.NO and _own_problem(other, file):
            line = file.span(other).line
            return f"it depends on the setting on line {line}, which cannot be rewritten"
    return ""


def _own_problem(setting: cst.Call, file: File) -> str:
    context = read_context(setting, file)
    if context is None or context.kind in (Kind.UNKNOWN, Kind.EITHER):
        return "the state dict type is only known at run time"
    if context.kind is Kind.LOCAL:
        return local_state_dict.MESSAGE
    if not isinstance(file.parent(setting), cst.Expr):
        return "the settings that it returns have no FSDP2 equivalent"
    function = file.function(setting)
    if function is not None and (function.name.value == "__enter__" or file.inside(function.body, cst.Yield)):
        return "it affects code inside this context manager that this tool cannot see"
    if any(path != file.path and _takes_sharded(path, file) for path in file.project.taking):
        return "it affects calls in other files that get the state of a sharded model"
    return ""


def _takes_sharded(path: str, file: File) -> bool:
    """Whether a model that is sharded reaches the file at ``path``, under a name or as an attribute of its objects."""
    # What a first run has sharded with FSDP2 is followed no more: its states are still of no kind.
    return (
        file.project.touches(path)
        or file.project.entered.calls_on_model(path, STATES)
        or (bool(file.project.fsdp2) and not file.project.wraps)
    )


def _subject(setting: cst.Call, file: File) -> cst.BaseExpression | None:
    context = read_context(setting, file)
    return context.subject if context is not None else None


def sticky_context(call: cst.Call, model: cst.BaseExpression, file: File) -> Context | str | None:
    """What ``set_state_dict_type`` has set for ``call``: None for nothing, or why that cannot be told."""
    own: list[Context] = []
    for setting in settings_calls(file.module, file):
        context = read_context(setting, file)
        if context is None or context.subject is None:
            return "the arguments of a set_state_dict_type in this file are not clear"
        if same_model(context.subject, model, file) is not Same.NO:
            own.append(context)
    if not own:
        return ELSEWHERE if "sticky_state" in file.project.flags else None
    if len({_meaning(context, file) for context in own}) > 1:
        own = [context for context in own if context.call and runs_before(file.statement(context.call), call, file)]
        if not own:
            return "set_state_dict_type sets different state dict types in this file"
    chosen = own[-1]
    if chosen.kind in (Kind.UNKNOWN, Kind.EITHER):
        return "the state dict type given to set_state_dict_type is only known at run time"
    if chosen.kind is Kind.LOCAL:
        return local_state_dict.MESSAGE
    return _moved(chosen, call, model, file)


def is_set_before(call: cst.Call, model: cst.BaseExpression, file: File) -> bool:
    """Whether ``set_state_dict_type`` was given ``model`` in the same function or class, which shows what it is."""
    for setting in settings_calls(file.module, file):
        context = read_context(setting, file)
        if context is None or context.subject is None or same_model(context.subject, model, file) is not Same.YES:
            continue
        if runs_before(file.statement(setting), call, file) or file.code(model).startswith("self."):
            return True
    return False


def _moved(context: Context, call: cst.Call, model: cst.BaseExpression, file: File) -> Context:
    """``context`` with expressions that can be evaluated at ``call``."""
    setting, subject = context.call, context.subject
    assert setting is not None and subject is not None
    notes: list[str] = []
    if not runs_before(file.statement(setting), call, file):
        line = file.span(setting).line
        notes.append(f"assumes set_state_dict_type on line {line} runs before, on the same model")
    elif same_model(subject, model, file) is not Same.YES:
        notes.append(f"assumes {file.code(model)} is {file.code(subject)}")
    return replace(
        context,
        model_config=_portable(context.model_config, call, file, notes),
        optim_config=_portable(context.optim_config, call, file, notes),
        note="; ".join(dict.fromkeys(notes)),
    )


def _portable(config: Config, call: cst.Call, file: File, notes: list[str]) -> Config:
    def moved(setting: Setting) -> Setting:
        if isinstance(setting, bool) or means_the_same(setting.node, call, file):
            return setting
        value = file.value(setting.node)
        literal = literal_bool(value)
        if not setting.behind and literal is not None:
            return literal
        if not setting.behind and means_the_same(value, call, file):
            return Expression(value)
        notes.append(f"assumes {setting.text(file.code)}, which is not available here, is true")
        return True

    return replace(config, offload=moved(config.offload), rank0_only=moved(config.rank0_only))


def _meaning(context: Context, file: File) -> tuple[str, ...]:
    assert context.call is not None
    return tuple(file.code(argument.value) for argument in context.call.args[1:])
