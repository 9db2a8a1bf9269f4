"""Rule for optimizers that may have been built before sharding, in code that cannot be followed."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.construction._plan.around import marked
from fsdp_rules.construction._plan.early_optimizers import early_optimizers
from fsdp_rules.construction._plan.local_functions import refuses_early
from fsdp_rules.file.expressions import is_repeatable, last_name, names_in
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.own_names import REFUSES_EARLY, own_name
from fsdp_rules.model.run_evidence import seen_wrap
from fsdp_rules.project.observed import SeenWrap
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit, InsertAfter, InsertBefore
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

EARLY = "built before sharding, its step would train nothing"
UNSEEN = f"an optimizer comes from code this tool cannot follow: {EARLY}"
#: Methods of a model that hand out none of its parameters.
PLAIN = frozenset({"apply", "bfloat16", "config", "cuda", "eval", "load_state_dict", "requires_grad_", "to", "train"})
HARMLESS = frozenset({"bool", "callable", "getattr", "hasattr", "id", "isinstance", "print", "repr", "str", "type"})
#: Functions and methods that put a model into a container or another module.
STORES = frozenset({"add_module", "append", "register_module", "setattr"})


class UnseenOptimizers(Rule):
    """Optimizer of unknown origin.

    FSDP2 makes new parameters, and an optimizer that was built before still holds the old ones: its steps train
    nothing. If this tool can follow the code that builds an optimizer, FSDP117 moves, relinks or reports it. If the
    optimizer comes from a registry, a library or a container, the rewrite marks the old parameters before sharding, and
    a torch hook stops the first step of an optimizer that still holds one. You can remove marks and hook once you know
    that the optimizer is built afterwards.
    """

    id = "FSDP125"
    name = "unseen-optimizers"
    what_to_test = "Take one optimizer step: it raises if the optimizer was built before the model was sharded."
    before = """
import optimizers
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, batches, config):
    optimizer = optimizers.REGISTRY[config.optimizer](model)
    model = FSDP(model, use_orig_params=True)
    for batch in batches:
        model(batch).backward()
        optimizer.step()
"""
    after = """
import optimizers
from torch.distributed.fsdp import fully_shard
from torch.optim.optimizer import register_optimizer_step_pre_hook

def refuse_early_optimizer(optimizer, args, kwargs):
    \"\"\"Stop a step that would train nothing: fully_shard replaced these parameters.\"\"\"
    held = (param for group in optimizer.param_groups for param in group["params"])
    if any(getattr(param, "is_replaced", False) for param in held):
        raise RuntimeError("optimizer built before fully_shard: build it afterwards")


register_optimizer_step_pre_hook(refuse_early_optimizer)


def train(model, batches, config):
    optimizer = optimizers.REGISTRY[config.optimizer](model)
    for param in model.parameters():
        param.is_replaced = True
    fully_shard(model)
    for param in model.parameters():
        param.is_replaced = False
    for batch in batches:
        model(batch).backward()
        optimizer.step()
"""


def may_have_unseen(call: cst.Call, module: cst.BaseExpression, file: File) -> bool:
    """Whether an optimizer that is not followed may hold what ``module`` has before ``call`` shards it."""
    if (shown := seen_wrap(call, file)) is not None and shown.early:
        return bool(_unfollowed(shown, file))
    if isinstance(module, cst.Call) or _is_fresh(module, call, file):
        return False
    return file.project.optimizers.may_precede(file.project, (file.path, file.scope(call)), file.span(call))


def _unfollowed(shown: SeenWrap, file: File) -> list[str]:
    """The places of optimizers that a run saw to be built before a wrap, without those that other rules speak of."""
    built = [entry.built for one in file.nodes(cst.Call) for entry in early_optimizers(one, file)]
    followed = [f"/{file.path}:{file.span(one).line}" for one in built]
    return [place for place in shown.early if not any(one.endswith(f"/{place}") for one in followed)]


def about_unseen_optimizers(call: cst.Call, module: cst.BaseExpression, file: File, *, marks: bool) -> Diagnosis:
    """What to say of a constructor that becomes ``fully_shard``; ``marks``: it marks the parameters around that."""
    statement, shown = file.statement(call), seen_wrap(call, file)
    early = _unfollowed(shown, file) if shown is not None else []
    unseen = f"the optimizer for {', '.join(early)} is {EARLY}" if early else UNSEEN
    edits: tuple[Edit, ...] = tuple(refuses_early(file)) if marks else ()
    remove = f"the marks and {own_name(REFUSES_EARLY, file)}"
    if not marks and is_repeatable(module) and not _is_bound_inside(module, statement, file):
        if _keeps(module, call, file):
            edits = (
                InsertBefore(statement, lambda code: "\n".join(marked(module, code(module), True, file))),
                InsertAfter(statement, lambda code: "\n".join(marked(module, code(module), False, file))),
                *refuses_early(file),
            )
        elif file.settings.may_help:
            remove, guard = "guard_optimizers", file.ref("fsdp_compat.guard_optimizers")
            edits = (InsertBefore(statement, lambda code: f"{guard}({code(module)})"),)
    if not edits and not marks:
        return Diagnosis(
            call,
            Level.MANUAL,
            unseen,
            "build every optimizer after this call, then silence this finding",
            rule=UnseenOptimizers.id,
        )
    return Diagnosis(
        call,
        Level.REVIEW,
        unseen.replace("its step would train nothing", "its first step raises now"),
        f"build every optimizer after this call, then remove {remove}",
        edits=edits,
        rule=UnseenOptimizers.id,
    )


def _is_bound_inside(module: cst.BaseExpression, statement: cst.CSTNode, file: File) -> bool:
    """Whether ``module`` has its name inside ``statement`` alone, in a comprehension or a lambda."""
    inside = []
    for node in file.ancestors(module):
        if node is statement:
            break
        inside.append(node)
    return any(isinstance(node, cst.BaseComp | cst.DictComp | cst.Lambda) for node in inside)


def _keeps(module: cst.BaseExpression, call: cst.Call, file: File) -> bool:
    """Whether the statement of ``call`` puts the model somewhere and does no more, and ``module`` is it afterwards."""
    root, parent, statement = (dotted(module) or "").partition(".")[0], file.parent(call), file.statement(call)
    if isinstance(statement, cst.Expr) and isinstance(parent, cst.Arg):
        owner = file.parent(parent)
        return statement.value is owner and isinstance(owner, cst.Call) and last_name(owner.func) in STORES
    if parent is not statement or not isinstance(statement, cst.Assign) or not root:
        return False
    return all(name.value != root for target in statement.targets for name in names_in(target.target))


def _makes(value: cst.BaseExpression | None, wrap: cst.Call) -> bool:
    """Whether ``value`` makes a model (``Net(...)``, ``Net.from_pretrained(...)``), or is the ``wrap`` of one."""
    if value is wrap:
        return True
    name = last_name(value.func) if isinstance(value, cst.Call) else ""
    return name[:1].isupper() or name.startswith("from_")


def _is_fresh(module: cst.BaseExpression, call: cst.Call, file: File) -> bool:
    """Whether the function makes the model itself, and before ``call`` gives nobody it or its parameters."""
    # What makes the object of an attribute may build an optimizer of it as well.
    root = module.value if isinstance(module, cst.Name) else ""
    scope = file.scope(call)
    made = file.bindings.found.get((scope, root), [])
    if not root or root == "self" or not made or not all(_makes(entry.value, call) for entry in made):
        return False
    line = file.span(call).line
    for use in file.uses(root):
        # A function inside may have been called above the wrap.
        if not f"{file.scope(use)}.".startswith(f"{scope}.") or file.span(use).line >= line:
            continue
        parent = file.parent(use)
        if isinstance(parent, cst.Attribute) and parent.attr.value not in PLAIN:
            return False
        if isinstance(parent, cst.Arg | cst.Element | cst.DictElement | cst.Return | cst.Assign):
            owner = file.parent(parent)
            if not (isinstance(owner, cst.Call) and dotted(owner.func) in HARMLESS):
                return False
    return True
