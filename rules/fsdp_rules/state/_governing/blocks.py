"""Whether a ``with`` that sets the kind of state can go, because everything that depends on it is rewritten."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.callers import called
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.once import once
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.same_model import Same, same_model
from fsdp_rules.model.summoned import SUMMON
from fsdp_rules.project.optimizers import holds_optimizer
from fsdp_rules.state import local_state_dict
from fsdp_rules.state._governing.calls import calls_in, state_call
from fsdp_rules.state._governing.entering import context_items, name_of_model, read_entered, yields
from fsdp_rules.state._governing.nested import calls_of, escaping
from fsdp_rules.state._governing.site import StateSite, state_site
from fsdp_rules.state._governing.state_settings import Context, Kind

#: Methods of a model that neither read nor load its state.
HARMLESS_METHODS = frozenset(
    {"buffers", "children", "cuda", "eval", "modules", "named_buffers", "named_modules", "named_parameters"}
    | {"parameters", "train", "to", "cpu"}
)
#: Methods of the project's own that speak of parameters, taken not to touch the state.
PARAMETER_METHODS = re.compile(r"(^|_)param(eter)?s?(_|$)")
#: Attributes of a model that are no modules.
NO_MODULES = frozenset({"config", "generation_config", "image_processor", "processor", "tokenizer"})
HARMLESS_PACKAGES = ("torch.", "dataclasses.", "json.", "logging.", "os.")
HARMLESS_FUNCTIONS = frozenset({"getattr", "hasattr", "id", "isinstance", "len", "print", "repr", "str", "type"})


@dataclass(frozen=True)
class Problem:
    """Why a block stays as it is, and what to do about it. ``local``: it asks for LOCAL_STATE_DICT."""

    message: str
    advice: str
    local: bool = False


UNCLEAR = Problem(
    "the arguments of state_dict_type are not clear here",
    "call get_model_state_dict(model, options=StateDictOptions(...)) instead",
)
#: Kinds of state that are not rewritten.
UNFIT = {
    Kind.UNKNOWN: Problem(
        "the state dict type is only known at run time",
        "choose get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) for a full "
        "state, or get_model_state_dict(model) for a sharded state",
    ),
    Kind.LOCAL: Problem(local_state_dict.MESSAGE, local_state_dict.ADVICE, local=True),
}
SUMMONED = Problem(
    "full parameters are gathered in the same statement, which changes what the state dict contains",
    "call get_model_state_dict(...) outside of summon_full_params",
)
YIELDS = Problem(
    "this block yields, and this tool cannot see the code that gets the state",
    "pass StateDictOptions(...) to get_model_state_dict in that code and remove this context manager",
)


@once
def block_problem(block: cst.With, file: File) -> Problem | None:
    """What keeps ``block`` from being rewritten, or None."""
    return next(_problems(block, file), None)


def _problems(block: cst.With, file: File) -> Iterator[Problem]:
    contexts: list[Context] = []
    for item, call in context_items(block, file):
        context = read_entered(call, file)
        if context is None or (item.asname is not None and name_of_model(call, file) is None):
            yield UNCLEAR
        elif context.kind in UNFIT:
            # Without a state of the model in it, as around an optimizer's own, the kind does not matter.
            if _concerns(context, block, file):
                yield UNFIT[context.kind]
        else:
            contexts.append(context)
    if any(SUMMON in file.code(item.item) for item in block.items):
        yield SUMMONED
    if yields(block, file):
        yield YIELDS
    for inner in calls_of(block, file):
        site = state_site(inner, file)
        if site is not None and site.around[0].block is block:
            yield from _problems_of_call(site, block)
    for context in contexts:
        for user in _opaque(context.subject, block, file) if context.subject is not None else ():
            yield Problem(
                f"{user} gets the model under {context.kind.value}, and uses the state in code this tool cannot see",
                "pass the state to it as an argument: get_model_state_dict(model, options=...)",
            )


def _concerns(context: Context, block: cst.With, file: File) -> bool:
    """Whether something in ``block`` may take or load a state that the setting ``context`` governs."""
    sites = [site for inner in calls_of(block, file) if (site := state_site(inner, file)) is not None]
    if any(site.around[0].block is block and not _is_optimizers_own(site, file) for site in sites):
        return True
    return context.subject is None or next(_opaque(context.subject, block, file), None) is not None


def _is_optimizers_own(site: StateSite, file: File) -> bool:
    """Whether an optimizer is asked itself, by a method that no kind of state governs."""
    name = dotted(site.model) if site.is_method else None
    return name is not None and holds_optimizer(name.rpartition(".")[2])


def _problems_of_call(site: StateSite, block: cst.With) -> Iterator[Problem]:
    same = site.around[0].same if site.is_method else Same.YES
    if same is Same.NO:
        return
    advice = _advice(site.state.name)
    if same is Same.UNSURE:
        name = site.file.code(site.model)
        yield Problem(f"{name} may be a different model from the one whose state dict type is set", advice)
    later = escaping(site.call, block, site.file)
    if later:
        yield Problem(
            f"{later} is defined here and uses the state whenever it is called, maybe after the block", advice
        )
    problem = site.state.problem or site.governing.problem
    if problem:
        yield Problem(f"{site.state.name} cannot be rewritten: {problem}", advice)


def block_assumption(block: cst.With, file: File) -> str:
    """What has to be true for ``block`` to be rewritten, which a name alone says; "" where nothing has to."""
    contexts = [read_entered(call, file) for _, call in context_items(block, file)]
    subjects = [dotted(context.subject) for context in contexts if context is not None and context.subject is not None]
    taken = [
        name
        for call in calls_of(block, file)
        if (name := dotted(call.func)) is not None
        and name.rpartition(".")[2] not in HARMLESS_METHODS
        and PARAMETER_METHODS.search(name.rpartition(".")[2])
        and any(subject is not None and _reaches(name.rpartition(".")[0], subject) for subject in subjects)
        and not _harmless(call, name, file)
    ]
    return f"assumes {taken[0]} neither reads nor loads the state" if taken else ""


def _advice(name: str) -> str:
    if "optim" in name:
        return "use get_optimizer_state_dict and set_optimizer_state_dict of torch.distributed.checkpoint.state_dict"
    return "use get_model_state_dict and set_model_state_dict of torch.distributed.checkpoint.state_dict"


def _opaque(subject: cst.BaseExpression, block: cst.With, file: File) -> Iterator[str]:
    """What in ``block`` gets hold of the model ``subject`` in a way that may read or load its state unseen."""
    outer = dotted(subject)
    if outer is None:
        return
    for call in calls_of(block, file):
        if state_call(call, file) is not None or (file.fsdp1(call.func) or "").startswith(FSDP):
            continue
        name = dotted(call.func)
        if _harmless(call, name, file):
            continue
        if name is not None and _knows_model(call, subject, block, file):
            yield name
        if name is not None and _reaches(name.rpartition(".")[0], outer):
            last = name.rpartition(".")[2]
            if last not in HARMLESS_METHODS and not PARAMETER_METHODS.search(last) and not _names_state(call):
                yield name
        elif any(_reaches(dotted(argument.value) or "", outer) for argument in call.args) and not _names_state(call):
            yield name or file.code(call.func)


def _knows_model(call: cst.Call, subject: cst.BaseExpression, block: cst.With, file: File) -> bool:
    """Whether ``call`` is of a function outside of ``block`` that takes or loads the state of ``subject`` by itself."""
    function = called(call, file)
    if function is None or block in file.ancestors(function):
        return False
    states = [state_call(call, file) for call in calls_in(function.body)]
    return any(state is not None and same_model(subject, state.model, file) is Same.YES for state in states)


def _reaches(text: str, outer: str) -> bool:
    """Whether one can get from the object ``text`` to the model ``outer``."""
    return bool(text) and (text == outer or text.startswith(f"{outer}.") or outer.startswith(f"{text}."))


def _names_state(call: cst.Call) -> bool:
    """Whether the call is handed the state (``save_pretrained(..., state_dict=...)``)."""
    return any(
        argument.keyword is not None
        and argument.keyword.value == "state_dict"
        and not (isinstance(argument.value, cst.Name) and argument.value.value == "None")
        for argument in call.args
    )


def _harmless(call: cst.Call, name: str | None, file: File) -> bool:
    if name is None:
        return False
    if (
        name in HARMLESS_FUNCTIONS
        or NO_MODULES.intersection(name.split(".")[1:-1])
        or (file.resolved(call.func) or "").startswith(HARMLESS_PACKAGES)
    ):
        return True
    function = called(call, file)
    return function is not None and "state_dict" not in file.code(function)
