"""Which calls read or load an FSDP1 model's state, and which settings govern them."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.file import File, dotted
from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.model.compiled import is_compiled
from fsdp_rules.model.same_model import Same, same_model
from fsdp_rules.model.sharded import sharded, sharded_owner
from fsdp_rules.project.project import Certainty
from fsdp_rules.state._governing.blocks import block_problem
from fsdp_rules.state._governing.calls import Action, StateCall
from fsdp_rules.state._governing.context import governing_with, read_context, unseen_contexts
from fsdp_rules.state._governing.nested import calling_block
from fsdp_rules.state._governing.state_settings import DEFAULT
from fsdp_rules.state._governing.sticky import is_set_before, sticky_context
from fsdp_rules.state._governing.switching import switching
from fsdp_rules.state._writing.base import refuse
from fsdp_rules.state._writing.get import Taking
from fsdp_rules.state._writing.set import Putting
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

#: Other things than models that have a state.
NO_MODEL = re.compile(r"optim|sched|scaler", re.IGNORECASE)


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
            notes.append(f"assumes {file.code(state.model)} is {file.code(found.subject)}")
        context, block = found, around
        notes += [found.note] if found.note else []
        break
    if block is not None and block_problem(block, file) is not None:
        return None
    if block is None:
        unseen = _is_unseen(state, file) if state.kind is None else ""
        if method and not is_set_before(state.call, state.model, file) and not _is_model(state, file, notes):
            return None
        if method and _is_a_mere_name(state, file):
            return Diagnosis(
                state.call,
                Level.INFO,
                f"assumes {file.code(state.model)} is not sharded: only another file has its sharded model "
                "under this name",
                f"if it is the sharded one, use {state.action.value} of torch.distributed.checkpoint.state_dict",
            )
        if unseen:
            return refuse(state, f"{unseen} may set the state dict type in code this tool cannot see")
        setting = calling_block(state.call, file) if state.kind is None else None
        if setting is not None:
            line = file.span(setting).line
            return refuse(
                state, f"this function is called inside the state_dict_type on line {line}, and maybe elsewhere"
            )
        sticky = sticky_context(state.call, state.model, file) if state.kind is None else None
        if isinstance(sticky, str):
            return refuse(state, sticky)
        if sticky is not None:
            context = sticky
            notes += [sticky.note] if sticky.note else []
        elif state.action is Action.GET_MODEL:
            notes.append("every rank gets the full state, as under FSDP1 by default")
    if state.problem:
        return refuse(state, state.problem)
    if method and is_compiled(state.model, file):
        notes.append("state dict keys no longer start with _orig_mod., as in files of a compiled FSDP1 model")
    takes = state.action in (Action.GET_MODEL, Action.GET_OPTIM)
    return (Taking if takes else Putting)(state, context, block, notes, file).diagnosis()


def is_sharded(state: StateCall, file: File) -> bool:
    """Whether ``state`` is that of an FSDP1 model, for all that is known."""
    for _, call in governing_with(state.call, file):
        context = read_context(call, file)
        if context is not None and context.subject is not None:
            return same_model(context.subject, state.model, file) is Same.YES
    known = is_set_before(state.call, state.model, file) or _is_model(state, file, [])
    return known and not _is_a_mere_name(state, file)


def _is_a_mere_name(state: StateCall, file: File) -> bool:
    """Whether nothing but the name of an attribute says that the receiver is an FSDP1 model.

    An attribute of ``self`` may come from a base class in another file, and is not meant.
    """
    root = (dotted(state.model) or "self").partition(".")[0]
    return (
        isinstance(state.model, cst.Attribute)
        and root not in ("self", "cls")
        and sharded(state.model, file).certainty is Certainty.MAYBE
        and not is_set_before(state.call, state.model, file)
        and not file.project.touches(file.path)
        and not any(canonical(target) is not None or "fsdp" in target.lower() for target in file.aliases.values())
    )


def _is_unseen(state: StateCall, file: File) -> str:
    """The context manager out of sight that may govern ``state``, "" where there is none."""
    unseen = unseen_contexts(file)
    if any(file.scope(call) == file.scope(state.call) for call in unseen):
        return "state_dict_type"
    for ancestor in file.ancestors(state.call):
        for switch in switching(ancestor, file) if isinstance(ancestor, cst.With) else ():
            return file.code(switch.func)
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


def _is_replaced(element: cst.Subscript, file: File) -> bool:
    """Whether the function of ``element`` puts something else in its place further down, as a wrap does."""
    text, line = file.code(element), file.span(element).line
    return any(
        file.scope(entry) == file.scope(element)
        and file.span(entry).line >= line
        and any(file.code(target.target) == text for target in entry.targets)
        for entry in file.nodes(cst.Assign)
    )


def _is_model(state: StateCall, file: File, notes: list[str]) -> bool:
    """Whether the receiver of a ``state_dict`` method is an FSDP1 model, or a part of one."""
    model = state.model
    element = isinstance(model, cst.Subscript) and dotted(model.value) is not None and not _is_replaced(model, file)
    name = file.code(model) if element else dotted(model)
    if name is None or name in ("self", "cls"):
        return False
    if isinstance(model, cst.Attribute) and model.attr.value == "_orig_mod":
        model = model.value
    held = sharded(model, file).certainty
    if held is Certainty.MAYBE and NO_MODEL.search(name.rpartition(".")[2]):
        return False
    if held is Certainty.MAYBE:
        notes.append(f"assumes {name} is the sharded model")
    if held is not Certainty.NO:
        return True
    if isinstance(state.model, cst.Attribute) and sharded_owner(state.model.value, file) is not None:
        notes.append(f"assumes {name} is a part of the sharded model")
        return True
    return False
