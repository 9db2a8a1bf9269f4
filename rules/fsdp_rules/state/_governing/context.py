"""Which kind of state FSDP1 gives at a place: the settings of the ``state_dict_type`` that governs it."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import bind, elements, is_none, is_repeatable, literal_bool, names_in, only_key
from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.file.reaching import latest_binding
from fsdp_rules.file.searching import find
from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.state._governing.kinds import entries, kind_of, may_be_local
from fsdp_rules.state._governing.state_settings import DEFAULT, Config, Context, Expression, Kind, Setting

STATE_DICT_TYPE = f"{FSDP}.state_dict_type"
SET_STATE_DICT_TYPE = f"{FSDP}.set_state_dict_type"
#: Functions that give the same answer whenever they are asked.
CONSTANT = frozenset({"torch.cuda.is_available", "torch.cuda.device_count", "torch.distributed.get_world_size"})
PARAMETERS = ("module", "state_dict_type", "state_dict_config", "optim_state_dict_config")


def is_context_call(node: cst.CSTNode, file: File, name: str = STATE_DICT_TYPE) -> bool:
    """Whether ``node`` calls ``FSDP.state_dict_type``, on the class or on an instance of it."""
    return isinstance(node, cst.Call) and _setter(node, file) == name


@once
def _setter(call: cst.Call, file: File) -> str:
    """The function of FSDP1 that ``call`` sets the kind of state by, "" for another call."""
    known = file.fsdp1(call.func)
    if known in (STATE_DICT_TYPE, SET_STATE_DICT_TYPE):
        return known
    name = f"{FSDP}.{call.func.attr.value}" if isinstance(call.func, cst.Attribute) else ""
    if name not in (STATE_DICT_TYPE, SET_STATE_DICT_TYPE):
        return ""
    kind = (_arguments(call, file) or {}).get("state_dict_type")
    return name if kind is not None and kind_of(kind, file) is not Kind.UNKNOWN else ""


@once
def read_context(call: cst.Call, file: File) -> Context | None:
    """What a call of ``state_dict_type`` or ``set_state_dict_type`` sets; None where its arguments cannot be told."""
    arguments = _arguments(call, file)
    if arguments is None or "module" not in arguments or "state_dict_type" not in arguments:
        return None
    consumes: list[tuple[cst.CSTNode, str]] = []
    for spread in (argument.value for argument in call.args if argument.star):
        consumes += file.bindings.behind(spread)
    kind, full = _form(arguments["state_dict_type"], call, file)
    consumes += file.bindings.behind(arguments["state_dict_type"])
    model = _config(arguments.get("state_dict_config"), DEFAULT.model_config, call, file, consumes)
    optim = _config(arguments.get("optim_state_dict_config"), DEFAULT.optim_config, call, file, consumes)
    notes: list[str] = []
    around = file.parent(call)
    if isinstance(around, cst.Assign):
        consumes += [(around, target.target.value) for target in around.targets if isinstance(target.target, cst.Name)]
    if isinstance(full, Expression) and full.behind.endswith(Kind.FULL.value):
        known = entries(full.node, file)
        sure = bool(known) and set(known) <= {Kind.FULL, Kind.SHARDED}
        notes += [] if sure else [f"assumes {file.code(full.node)} is {kind.value}"]
    if isinstance(around, cst.IfExp):
        notes.append(f"the code does the same if {file.code(around.test)} selects no context")
    return Context(kind, model, optim, call, arguments["module"], tuple(consumes), "; ".join(notes), full)


def _arguments(call: cst.Call, file: File) -> dict[str, cst.BaseExpression] | None:
    """The arguments of ``call`` by name, also those of a tuple that ``*`` spreads and that means the same here."""
    given: list[cst.Arg] = []
    for argument in call.args:
        parts = elements(file.value(argument.value)) if argument.star == "*" else None
        for name in (name for part in parts or () for name in names_in(part)):
            scope, times = _binding(name.value, argument, file)
            if times > 1 or (scope, times) != _binding(name.value, name, file):
                return None
        given += [argument] if parts is None else [cst.Arg(part) for part in parts]
    return bind(call.with_changes(args=given), PARAMETERS)


def _form(node: cst.BaseExpression, call: cst.Call, file: File) -> tuple[Kind, Setting]:
    """The kind of state that ``node`` asks for, and whether it is a full one."""
    kind = kind_of(node, file)
    if kind is not Kind.UNKNOWN:
        return kind, kind is Kind.FULL
    value = file.value(node)
    if (file.fsdp1(value) or "").startswith("."):
        # A name of FSDP1's package that is none of its public ones is left by hand, and so is what it is a part of.
        return Kind.UNKNOWN, True
    if isinstance(value, cst.IfExp) and (value is node or means_the_same(value.test, call, file)):
        arms = (kind_of(value.body, file), kind_of(value.orelse, file))
        if arms == (Kind.FULL, Kind.SHARDED):
            return Kind.EITHER, Expression(value.test)
        if arms == (Kind.SHARDED, Kind.FULL):
            plain = is_repeatable(value.test)
            return Kind.EITHER, Expression(value.test, "" if plain else ")", "not " if plain else "not (")
    if (not is_repeatable(node) and not _is_lookup(node, file)) or may_be_local(node, file):
        return Kind.UNKNOWN, True
    return Kind.EITHER, Expression(node, f" is {_spelled(file)}.{Kind.FULL.value}")


def _is_lookup(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is ``StateDictType[name]``, ``getattr(StateDictType, name)`` or an entry of a dictionary."""
    if isinstance(node, cst.Subscript) and (key := only_key(node)) is not None:
        parts: list[cst.BaseExpression] = [node.value, key]
    elif isinstance(node, cst.Call) and isinstance(node.func, cst.Name) and node.func.value == "getattr":
        parts = [argument.value for argument in node.args]
    else:
        return False
    if len(parts) != 2 or not is_repeatable(parts[1]):
        return False
    return file.fsdp1(parts[0]) == "StateDictType" or (isinstance(node, cst.Subscript) and is_repeatable(parts[0]))


def _spelled(file: File) -> str:
    for local, target in file.aliases.items():
        if canonical(target) == "StateDictType":
            return local
    return file.ref("fsdp_compat.StateDictType")


def _config(
    node: cst.BaseExpression | None,
    default: Config,
    call: cst.Call,
    file: File,
    consumes: list[tuple[cst.CSTNode, str]],
) -> Config:
    if node is None or is_none(node):
        return default
    latest = latest_binding(node, call, file)
    if latest is not None and latest.value is not None and file.objects.changes(latest.value, node):
        return _unread(node, file)
    value = file.value(latest.value) if latest is not None and latest.value is not None else node
    known = file.fsdp1(value.func) if isinstance(value, cst.Call) else None
    arguments = bind(value, ("offload_to_cpu", "rank0_only")) if isinstance(value, cst.Call) else None
    if known is None or not known.endswith("Config") or arguments is None:
        return _unread(node, file)
    settings = {
        "offload_to_cpu": default.offload if known != "LocalOptimStateDictConfig" else False,
        "rank0_only": False,
    }
    for name, argument in arguments.items():
        literal = literal_bool(argument)
        if literal is None and value is not node and not means_the_same(argument, call, file):
            return _unread(node, file)
        settings[name] = Expression(argument) if literal is None else literal
        if isinstance(argument, cst.Name) and is_constant(file.value(argument), file):
            consumes += file.bindings.behind(argument)
    if latest is not None and isinstance(node, cst.Name):
        consumes.append((latest.statement, node.value))
        consumes += file.bindings.behind(latest.value or node)
    return Config(settings["offload_to_cpu"], settings["rank0_only"])


def _unread(node: cst.BaseExpression, file: File) -> Config:
    # Configurations of sharded states have no rank0_only, and FSDP1 takes None for one with its defaults. Offloading
    # gives a full state to rank 0 alone, so that None leaves it where it is, as a configuration that is absent does.
    offload = Expression(node, ', "offload_to_cpu", False)', "getattr(")
    if _is_configuration(node, file):
        offload = Expression(node, ".offload_to_cpu")
    return Config(offload, Expression(node, ', "rank0_only", False)', "getattr("))


def _is_configuration(node: cst.BaseExpression, file: File) -> bool:
    """Whether all that ``node`` may be here are calls of FSDP1's configurations."""
    if isinstance(node, cst.IfExp):
        return _is_configuration(node.body, file) and _is_configuration(node.orelse, file)
    if isinstance(node, cst.Name):
        values = file.objects.origins(node)
        return (
            bool(values)
            and not any(isinstance(value, cst.Name) for value in values)
            and all(_is_configuration(value, file) for value in values)
        )
    return isinstance(node, cst.Call) and (file.fsdp1(node.func) or "").endswith("DictConfig")


def is_constant(node: cst.BaseExpression, file: File) -> bool:
    """Whether ``node`` is the same whenever it is asked: a literal, or a call of a function that answers one thing."""
    return literal_bool(node) is not None or (isinstance(node, cst.Call) and file.resolved(node.func) in CONSTANT)


def means_the_same(node: cst.BaseExpression, place: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` has the value at ``place`` that it has where it stands."""
    if any(file.resolved(call.func) not in CONSTANT for call in find(node, cst.Call)):
        return False
    return all(_binding(name.value, node, file) == _binding(name.value, place, file) for name in names_in(node))


def _binding(name: str, place: cst.CSTNode, file: File) -> tuple[str, int]:
    scope = file.scope(place)
    while True:
        found = file.bindings.found.get((scope, name))
        if found:
            return scope, len(found)
        if not scope:
            return "", 0
        scope = scope.rpartition(".")[0]
