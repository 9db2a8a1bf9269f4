"""``FSDP.set_state_dict_type``: settings that stay until the next call."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.source import File, dotted
from fsdp_rules.state.calls import calls_in
from fsdp_rules.state.context import SET_STATE_DICT_TYPE, Context, Kind, Same, is_context_call, read_context, same_model


def settings_calls(file: File) -> list[cst.Call]:
    """Every call of ``set_state_dict_type`` in the file, in order."""
    if "set_state_dict_type" not in file.text:
        return []
    return [call for call in file.nodes(cst.Call) if is_context_call(call, file, SET_STATE_DICT_TYPE)]


def sticky_context(call: cst.Call, model: cst.BaseExpression, file: File) -> Context | str | None:
    """What ``set_state_dict_type`` has set for ``call``: None for nothing, or why that cannot be told."""
    own: list[Context] = []
    for setting in settings_calls(file):
        context = read_context(setting, file, sticky=True)
        if context is None or context.subject is None:
            return "the arguments of a set_state_dict_type in this file cannot be told apart"
        if _about(context.subject, model, setting, call, file):
            own.append(context)
    if not own:
        return None
    if len({_meaning(context, file) for context in own}) > 1:
        before = [context for context in own if _runs_before(context.call, call, file)]
        if not before:
            return "set_state_dict_type sets different kinds of state in this file"
        own = before[-1:]
    chosen = own[-1]
    if chosen.kind is Kind.UNKNOWN:
        return "set_state_dict_type takes a kind of state that is only known at run time"
    if chosen.kind is Kind.LOCAL:
        return "LOCAL_STATE_DICT gives FSDP1's flat parameters, which FSDP2 does not have"
    return chosen


def readers(setting: cst.Call, file: File) -> bool:
    """Whether the file has calls that ``setting`` may govern."""
    return any(
        isinstance(call.func, cst.Attribute) and "state_dict" in call.func.attr.value and call is not setting
        for call in file.nodes(cst.Call)
    )


def _about(
    subject: cst.BaseExpression, model: cst.BaseExpression, setting: cst.Call, call: cst.Call, file: File
) -> bool:
    if same_model(subject, model, file) is not Same.YES:
        return False
    name = dotted(subject) or ""
    if name.startswith("self."):
        return True
    return file.scope(setting) == file.scope(call) or not file.scope(setting) or _last(subject) == _last(model)


def _last(node: cst.BaseExpression) -> str:
    return (dotted(node) or "").rpartition(".")[2]


def _meaning(context: Context, file: File) -> tuple[str, ...]:
    assert context.call is not None
    return tuple(file.code(argument.value) for argument in context.call.args[1:])


def _runs_before(setting: cst.Call | None, call: cst.Call, file: File) -> bool:
    if setting is None or file.scope(setting) != file.scope(call) or call in set(calls_in(setting)):
        return False
    around = {file.statement(call), *file.ancestors(call)}
    for ancestor in around:
        if not isinstance(ancestor, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            continue
        for sibling in file.block(ancestor):
            if sibling in around:
                break
            if sibling is file.statement(setting):
                return True
    return False
