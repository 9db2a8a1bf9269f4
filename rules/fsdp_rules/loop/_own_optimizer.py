"""The optimizer that a file builds of all parameters of a model, and classes of optimizers that it defines."""

from __future__ import annotations

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File, dotted


def optimizer_of(model: cst.BaseExpression, place: cst.CSTNode, file: File) -> str | None:
    """The optimizer of all parameters of ``model``, built where its name means the same as at ``place``."""
    text = dotted(model)
    if text is None:
        return None
    found: list[str] = []
    for entry in file.nodes(cst.Assign):
        name = dotted(entry.targets[0].target) if len(entry.targets) == 1 else None
        call = entry.value
        if name is None or not isinstance(call, cst.Call) or not call.args:
            continue
        if not (file.resolved(call.func) or "").startswith("torch.optim.") or "lr_scheduler" in file.code(call.func):
            continue
        if file.code(call.args[0].value) == f"{text}.parameters()" and _means_the_same(name, text, entry, place, file):
            found.append(name)
    return found[0] if len(found) == 1 else None


def _means_the_same(name: str, model: str, entry: cst.Assign, place: cst.CSTNode, file: File) -> bool:
    home, scope = file.scope(entry), file.scope(place)
    if name.startswith("self.") and model.startswith("self."):
        return home.rpartition(".")[0] == scope.rpartition(".")[0]
    if "." in name or len(file.bindings.found.get((home, name), ())) != 1:
        return False
    inside = scope == home or (home != "" and scope.startswith(f"{home}."))
    rebound = any((inner, root) in file.bindings.found for inner in [scope] if inner != home for root in (name, model))
    return inside and not rebound and "." not in model


def is_optimizer_class(node: cst.CSTNode) -> bool:
    """Whether ``node`` defines an optimizer, by the names of its base classes."""
    return isinstance(node, cst.ClassDef) and any(last_name(one.value).endswith("Optimizer") for one in node.bases)


def own_optimizer(node: cst.CSTNode, file: File) -> cst.ClassDef | None:
    """The class of an optimizer that ``node`` stands in."""
    around = (one for one in file.ancestors(node) if isinstance(one, cst.ClassDef))
    return next((one for one in around if is_optimizer_class(one)), None)
