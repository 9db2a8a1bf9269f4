"""Functions that do nothing but give FSDP1's context for one kind of state, which their callers enter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import libcst as cst

from fsdp_rules.file.callers import called
from fsdp_rules.file.expressions import bind, literal_bool, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.file.other_files import other_file
from fsdp_rules.file.tree import statements_of
from fsdp_rules.state._governing.context import is_context_call, read_context
from fsdp_rules.state._governing.state_settings import Both, Config, Context, Expression, Kind, Setting

MANAGER = "contextlib.contextmanager"
#: What makes a function of a class that gets no object of it, or the class.
STATIC = "staticmethod"
OF_CLASS = ([STATIC], ["classmethod"])


@dataclass(frozen=True, eq=False)
class Returned:
    """``function`` of ``file`` returns the context that ``call`` makes, or enters it around its only ``yield``."""

    file: File
    function: cst.FunctionDef
    call: cst.Call


@once
def returned_by(function: cst.FunctionDef, file: File) -> Returned | None:
    """What ``function`` gives, where that is the context of one certain kind of state and nothing else."""
    if function.asynchronous is not None or _others_of_its_name(function, file):
        return None
    last = _only_statement(function, file)
    call: cst.BaseExpression | None = None
    decorators = [file.resolved(one.decorator) or file.code(one.decorator) for one in function.decorators]
    if decorators[:1] in OF_CLASS:
        decorators = decorators[1:]
    if isinstance(last, cst.Return) and not decorators:
        call = last.value
    elif isinstance(last, cst.With) and decorators == [MANAGER] and _only_yields(last):
        call = last.items[0].item
    if not isinstance(call, cst.Call) or not is_context_call(call, file):
        return None
    context = read_context(call, file)
    given = frozenset(one.name.value for one in function.params.params)
    return Returned(file, function, call) if context is not None and _is_certain(context, given) else None


@once
def entered_function(call: cst.Call, file: File) -> Returned | None:
    """The function of the program, or method of the class around, that ``call`` gets such a context from."""
    function = (called(call, file) or _of_class(call, file)) if "state_dict_type" in file.text else None
    if function is None:
        found = _of_another_file(call, file)
    elif (dotted(call.func) != function.name.value) == _is_method(function, file):
        found = returned_by(function, file)
    else:
        return None
    return found if found is not None and returned_context(call, found, file) is not None else None


def _of_class(call: cst.Call, file: File) -> cst.FunctionDef | None:
    """The function that ``call`` gets from a class of the file, or from the one around, without an object of it."""
    head, _, last = (dotted(call.func) or "").rpartition(".")
    scope = file.scope(call).partition(".")[0] if head == "cls" else head
    found = [one for one in file.nodes(cst.FunctionDef) if scope and (file.scope(one), one.name.value) == (scope, last)]
    bound = [file.code(one.decorator) for function in found for one in function.decorators[:1]]
    return found[0] if len(found) == 1 and bound in OF_CLASS else None


def _of_another_file(call: cst.Call, file: File) -> Returned | None:
    full = file.resolved(call.func)
    home = file.project.home(full) if full is not None and not full.startswith("torch.") else None
    if home is None or home[0] == file.path or b"state_dict_type" not in file.project.sources[home[0]]:
        return None
    other = other_file(home[0], file)
    functions = [] if other is None else [one for one in other.nodes(cst.FunctionDef) if one.name.value == home[1]]
    if other is None or len(functions) != 1 or other.scope(functions[0]):
        return None
    return returned_by(functions[0], other)


def returned_context(call: cst.Call, found: Returned, file: File) -> Context | None:
    """The settings of ``found`` as they are for ``call``; None where its model has no name there."""
    context = read_context(found.call, found.file)
    if context is None or context.subject is None:
        return None
    names = [parameter.name.value for parameter in found.function.params.params]
    own = names[:1] if _is_method(found.function, found.file) and not _is_static(found.function, found.file) else []
    given = bind(call, tuple(names[len(own) :]))
    text = found.file.code(context.subject)
    first = next(iter(names_in(context.subject)), None)
    root, rest = (text, "") if text.isidentifier() else (first.value if first is not None else "", text)
    if given is None or not root or (context := _as_given(context, given, found)) is None:
        return None
    if own == [root]:
        return replace(context, consumes=()) if root == "self" and rest else None
    if root in names:
        return replace(context, subject=given[root], consumes=()) if root in given and not rest else None
    return None


def yields_model(found: Returned) -> bool:
    """Whether what a ``with`` calls it is the model that it sets the kind of state of."""
    context = read_context(found.call, found.file)
    given = [one.value for one in found.file.inside(found.function, cst.Yield) if one.value is not None]
    return context is not None and context.subject is not None and [*map(dotted, given)] == [dotted(context.subject)]


def uses(found: Returned, file: File) -> list[cst.CSTNode]:
    """Every place of ``file`` that names ``found``, text that may be a name for ``getattr`` among them."""
    name = found.function.name.value
    attributes = [one for one in file.nodes(cst.Attribute) if one.attr.value == name]
    texts = [one for one in file.nodes(cst.SimpleString) if one.raw_value == name]
    inner = {one.attr for one in attributes}
    return [*attributes, *texts, *(one for one in file.uses(name) if one not in inner)]


def _others_of_its_name(function: cst.FunctionDef, file: File) -> bool:
    """Whether the project has another function of this name, which may be the one that is called."""
    name = function.name.value
    owners = [owner for owner, names in file.project.owners.methods.items() if name in names]
    bound = [key for key, made in file.bindings.found.items() if key[1] == name for _ in made]
    return len(owners) > 1 or len(bound) > 1


def _is_method(function: cst.FunctionDef, file: File) -> bool:
    around = (one for one in file.ancestors(function) if isinstance(one, cst.ClassDef | cst.FunctionDef))
    return isinstance(next(around, None), cst.ClassDef)


def _is_static(function: cst.FunctionDef, file: File) -> bool:
    return bool(function.decorators) and file.code(function.decorators[0].decorator) == STATIC


def _only_statement(function: cst.FunctionDef, file: File) -> cst.CSTNode | None:
    """The one statement of ``function`` beside imports, its docstring and settings that it gives a name."""
    statements = statements_of(function.body.body)
    if function.get_docstring() is not None:
        statements = statements[1:]
    kept = [one for one in statements if not isinstance(one, cst.Import | cst.ImportFrom)]
    while len(kept) > 1 and isinstance(kept[0], cst.Assign) and _makes_setting(kept[0], file):
        kept = kept[1:]
    return kept[0] if len(kept) == 1 else None


def _makes_setting(one: cst.Assign, file: File) -> bool:
    """Whether ``one`` names a kind of state or a configuration of FSDP1, which is there for the context alone."""
    made = one.value.func if isinstance(one.value, cst.Call) else one.value
    named = (file.fsdp1(made) or "").partition(".")[0]
    return named == "StateDictType" or named.endswith("DictConfig")


def _only_yields(block: cst.With) -> bool:
    body = block.body.body
    line = body[0] if len(body) == 1 else None
    only = line.body[0] if isinstance(line, cst.SimpleStatementLine) and len(line.body) == 1 else line
    one = only.value if isinstance(only, cst.Expr) else None
    return (
        isinstance(one, cst.Yield)
        and (one.value is None or isinstance(one.value, cst.Name))
        and len(block.items) == 1
        and block.items[0].asname is None
        and block.asynchronous is None
    )


def _is_certain(context: Context, given: frozenset[str]) -> bool:
    """Whether ``context`` means the same wherever it is entered, with what its function is ``given`` by name."""
    known = context.kind in (Kind.FULL, Kind.SHARDED) and not context.note
    configs = (context.model_config, context.optim_config)
    settings = [setting for config in configs for setting in (config.offload, config.rank0_only)]
    return known and all(isinstance(one, bool) or _parameter(one) in given for one in settings)


def _parameter(setting: Setting) -> str:
    """The name that ``setting`` is alone; "" where it is anything else."""
    plain = isinstance(setting, Expression) and not isinstance(setting, Both) and not setting.before + setting.behind
    return dotted(setting.node) or "" if isinstance(setting, Expression) and plain else ""


def _as_given(context: Context, given: dict[str, cst.BaseExpression], found: Returned) -> Context | None:
    """``context`` with what a call gives its parameters, or their defaults; None where that is not known."""
    defaults = {one.name.value: one.default for one in found.function.params.params}

    def value(setting: Setting) -> Setting | None:
        if isinstance(setting, bool):
            return setting
        name = _parameter(setting)
        literal = literal_bool(given.get(name, defaults.get(name)))
        return literal if literal is not None or name not in given else Expression(given[name])

    def filled(config: Config) -> Config | None:
        offload, rank0_only = value(config.offload), value(config.rank0_only)
        return (
            None if offload is None or rank0_only is None else replace(config, offload=offload, rank0_only=rank0_only)
        )

    model, optim = filled(context.model_config), filled(context.optim_config)
    return None if model is None or optim is None else replace(context, model_config=model, optim_config=optim)
