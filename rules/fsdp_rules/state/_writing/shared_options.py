"""The options that several calls of one block have in common."""

from __future__ import annotations

from collections import Counter

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.rank_tests import only_on_rank_zero
from fsdp_rules.model.same_model import Same, same_model
from fsdp_rules.state._governing.calls import Action, StateCall, state_call
from fsdp_rules.state._governing.context import governing_with, read_context
from fsdp_rules.state._governing.nested import calls_of
from fsdp_rules.state._governing.state_settings import Context, Kind, Setting
from fsdp_rules.state._writing.options import gathering

#: What a variable for options is called, the first that is free.
OPTION_NAMES = ("options", "state_dict_options", "checkpoint_options")
OPTIM_OPTION_NAMES = ("optim_options", "optimizer_options")


def is_full(state: StateCall, context: Context) -> Setting:
    """Whether the state is a full one."""
    return context.full if state.kind is None else state.kind is Kind.FULL


def governed(block: cst.With, file: File) -> list[StateCall]:
    """The calls whose kind of state ``block`` sets."""
    found: list[StateCall] = []
    for call in calls_of(block, file):
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
    return file.fresh(block, *OPTION_NAMES)


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
            is_full(state, context), state.config or default, only_on_rank_zero(state.call, file), file
        )
        return "" if gathered.everywhere else gathered.options(file.code)
    return ""
