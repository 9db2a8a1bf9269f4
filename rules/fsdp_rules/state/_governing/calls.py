"""Every call by which FSDP1 code reads or loads a state, brought into one form."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, replace

import libcst as cst

from fsdp_rules.file.expressions import bind, is_none, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.guards import Guard, fsdp1_guard
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.flow import Certainty
from fsdp_rules.state._governing.state_settings import Config, Expression, Kind


class Action(enum.Enum):
    """What a call does."""

    GET_MODEL = "get_model_state_dict"
    SET_MODEL = "set_model_state_dict"
    GET_OPTIM = "get_optimizer_state_dict"
    SET_OPTIM = "set_optimizer_state_dict"

    @property
    def full_name(self) -> str:
        """Where torch has the function that does it."""
        return f"torch.distributed.checkpoint.state_dict.{self.value}"


@dataclass(frozen=True, eq=False)
class StateCall:
    """A call and what it is about.

    ``kind`` and ``config`` are set where the call itself decides them, and None where the context does. ``broadcast``:
    only rank 0 needs the state. ``loads``: the call already loads, no ``load_state_dict`` follows. ``problem`` says
    why the call cannot be rewritten.
    """

    call: cst.Call
    action: Action
    name: str
    model: cst.BaseExpression
    optim: cst.BaseExpression | None = None
    state: cst.BaseExpression | None = None
    strict: cst.BaseExpression | None = None
    kind: Kind | None = None
    config: Config | None = None
    broadcast: bool = False
    loads: bool = False
    problem: str = ""


CURRENT = (f"{FSDP}.optim_state_dict", f"{FSDP}.optim_state_dict_to_load")
DEPRECATED = tuple(
    f"{FSDP}.{name}"
    for name in (
        "full_optim_state_dict",
        "sharded_optim_state_dict",
        "shard_full_optim_state_dict",
        "scatter_full_optim_state_dict",
        "flatten_sharded_optim_state_dict",
    )
)
PARAMETERS = {
    "optim_state_dict": ("model", "optim", "optim_state_dict", "group"),
    "optim_state_dict_to_load": (
        "model",
        "optim",
        "optim_state_dict",
        "is_named_optimizer",
        "load_directly",
        "group",
    ),
    "full_optim_state_dict": ("model", "optim", "optim_input", "rank0_only", "group"),
    "sharded_optim_state_dict": ("model", "optim", "group"),
    "shard_full_optim_state_dict": ("full_optim_state_dict", "model", "optim_input", "optim"),
    "scatter_full_optim_state_dict": ("full_optim_state_dict", "model", "optim_input", "optim", "group"),
    "flatten_sharded_optim_state_dict": ("sharded_optim_state_dict", "model", "optim"),
}
STATE_NAMES = ("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict")


@once
def state_call(call: cst.Call, file: File) -> StateCall | None:
    """What ``call`` does to a state, or None when it is no such call. A method's receiver may be anything yet."""
    known = file.fsdp1(call.func)
    if known in CURRENT or known in DEPRECATED:
        assert known is not None
        return _static(call, known.rpartition(".")[2], file)
    if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("state_dict", "load_state_dict"):
        found = _method(call, call.func.value, call.func.attr.value)
        text = file.code(call.func.value)
        is_mixed = known_as("mixed", call.func, file) and fsdp1_guard(call, text, file) is not Guard.FSDP1
        other = f"{text} may also be another object with its own {found.name}"
        return replace(found, problem=other) if is_mixed else found
    return None


def _method(call: cst.Call, model: cst.BaseExpression, name: str) -> StateCall:
    if name == "state_dict":
        problem = "state_dict() with arguments has no equivalent in torch.distributed.checkpoint" if call.args else ""
        return StateCall(call, Action.GET_MODEL, name, model, problem=problem)
    arguments = bind(call, ("state_dict", "strict", "assign"))
    if arguments is None or "state_dict" not in arguments:
        return StateCall(
            call, Action.SET_MODEL, name, model, problem="the arguments of load_state_dict are not clear here"
        )
    problem = ""
    if "assign" in arguments and literal_bool(arguments["assign"]) is not False:
        problem = "load_state_dict(assign=True) has no equivalent for sharded parameters"
    strict = arguments.get("strict")
    if literal_bool(strict) is True:
        strict = None
    return StateCall(call, Action.SET_MODEL, name, model, state=arguments["state_dict"], strict=strict, problem=problem)


def _static(call: cst.Call, name: str, file: File) -> StateCall:
    arguments = bind(call, PARAMETERS[name])
    if arguments is None:
        return StateCall(
            call, Action.GET_OPTIM, name, call.func, problem="its arguments are unpacked from a sequence or dict"
        )
    if name == "optim_state_dict_to_load" and _old_order(call, file):
        arguments = bind(call, ("optim_state_dict", "model", "optim", *PARAMETERS[name][3:])) or {}
    model = arguments.get("model")
    if model is None:
        return StateCall(call, Action.GET_OPTIM, name, call.func, problem="it has no model argument")
    if name in ("optim_state_dict", "full_optim_state_dict", "sharded_optim_state_dict"):
        return _get(call, name, model, arguments, file)
    found = _set(call, name, model, arguments)
    if found.kind is None and found.state is not None and _is_read_sharded(found.state, file):
        return replace(found, kind=Kind.SHARDED)
    return found


def _is_read_sharded(state: cst.BaseExpression, file: File) -> bool:
    """Whether ``state`` is, or is a part of, what torch read as a sharded state, wherever it is loaded."""
    while isinstance(state, cst.Subscript):
        state = state.value
    value = file.value(state)
    if isinstance(value, cst.Subscript):
        return _is_read_sharded(value, file)
    full = file.resolved(value.func) if isinstance(value, cst.Call) else None
    return full is not None and full.rpartition(".")[2] == "load_sharded_optimizer_state_dict"


def _get(
    call: cst.Call, name: str, model: cst.BaseExpression, arguments: dict[str, cst.BaseExpression], file: File
) -> StateCall:
    optim = arguments.get("optim")
    problem = "" if optim is not None else "it has no optimizer argument"
    given = arguments.get("optim_state_dict")
    if given is not None and not is_none(given) and not _own_state(given, optim, file):
        problem = f"it transforms {file.code(given)}, which may not be the optimizer's own state"
    kind, config = None, None
    if name == "full_optim_state_dict":
        kind = Kind.FULL
        rank0 = arguments.get("rank0_only")
        literal = True if rank0 is None else literal_bool(rank0)
        config = Config(offload=True, rank0_only=literal if literal is not None else Expression(rank0 or call))
    elif name == "sharded_optim_state_dict":
        kind, config = Kind.SHARDED, Config(offload=True, given=False)
    return StateCall(call, Action.GET_OPTIM, name, model, optim=optim, kind=kind, config=config, problem=problem)


def _set(call: cst.Call, name: str, model: cst.BaseExpression, arguments: dict[str, cst.BaseExpression]) -> StateCall:
    state = next((arguments[entry] for entry in STATE_NAMES if entry in arguments), None)
    problem = "" if state is not None else "it has no state argument"
    named = arguments.get("is_named_optimizer")
    if named is not None and literal_bool(named) is not False:
        problem = "states of a NamedOptimizer have no FSDP2 equivalent"
    directly = arguments.get("load_directly")
    if directly is not None and literal_bool(directly) is None:
        problem = "load_directly is only known at run time"
    kind = None
    if name in ("shard_full_optim_state_dict", "scatter_full_optim_state_dict"):
        kind = Kind.FULL
    elif name == "flatten_sharded_optim_state_dict":
        kind = Kind.SHARDED
    optim = arguments.get("optim")
    return StateCall(
        call,
        Action.SET_OPTIM,
        name,
        model,
        optim=None if is_none(optim) else optim,
        state=state,
        kind=kind,
        broadcast=name == "scatter_full_optim_state_dict",
        loads=literal_bool(directly) is True,
        problem=problem,
    )


def _old_order(call: cst.Call, file: File) -> bool:
    """Whether the positional arguments are torch 2.0's: state, model, optimizer."""
    positional = [argument.value for argument in call.args if argument.keyword is None]
    keywords = {argument.keyword.value for argument in call.args if argument.keyword is not None}
    if not positional:
        return False
    if len(positional) < 3:
        return "model" in keywords
    return _looks_like_state(positional[0], file) and not _looks_like_state(positional[2], file)


def _looks_like_state(node: cst.BaseExpression, file: File) -> bool:
    if sharded(node, file).certainty is not Certainty.NO:
        return False
    if isinstance(node, cst.Subscript | cst.Call):
        return True
    name = node.attr.value if isinstance(node, cst.Attribute) else getattr(node, "value", "")
    return any(word in str(name).lower() for word in ("state", "osd", "dict", "ckpt", "checkpoint"))


def _own_state(node: cst.BaseExpression, optim: cst.BaseExpression | None, file: File) -> bool:
    value = file.value(node)
    return (
        optim is not None
        and isinstance(value, cst.Call)
        and not value.args
        and isinstance(value.func, cst.Attribute)
        and value.func.attr.value == "state_dict"
        and file.code(value.func.value) == file.code(optim)
    )


def calls_in(node: cst.CSTNode) -> Iterator[cst.Call]:
    """Every call inside ``node``, functions defined in it left out."""
    if isinstance(node, cst.FunctionDef | cst.Lambda | cst.ClassDef):
        return
    if isinstance(node, cst.Call):
        yield node
    for child in node.children:
        yield from calls_in(child)
