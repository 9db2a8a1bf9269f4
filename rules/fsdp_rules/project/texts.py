"""What single expressions say by their own text, wherever they are."""

from __future__ import annotations

import ast
import re

#: What wraps a model otherwise than FSDP1, and gives the wrapped model, or it and more.
OTHER_WRAPPERS = frozenset(
    {
        "apex.parallel.DistributedDataParallel",
        "deepspeed.DeepSpeedEngine",
        "deepspeed.initialize",
        "deepspeed.runtime.engine.DeepSpeedEngine",
        "torch.nn.DataParallel",
        "torch.nn.parallel.DataParallel",
        "torch.nn.parallel.DistributedDataParallel",
        "torch.nn.parallel.distributed.DistributedDataParallel",
    }
)
#: Methods of a model that give its parameters.
PARAMETERS = frozenset({"parameters", "named_parameters"})
#: Functions that give the elements of their arguments, or one of them.
PASSING = frozenset(
    {"list", "tuple", "set", "dict", "reversed", "sorted", "iter", "next", "filter", "OrderedDict"}
    | {"enumerate", "zip", "chain", "cycle", "islice"}
)
#: Methods of containers that give what is in them.
TAKING = frozenset({"values", "items", "get", "pop", "popleft", "copy", "__getitem__"})
#: What stands beside models in tuples, by what people call it.
NO_MODEL = re.compile(
    r"^opts?$|optim|sched|loss|data|loader|batch|args|conf|cfg|scaler|tokenizer|processor|step|epoch|lr$|rank|device|seed",
    re.IGNORECASE,
)


def element_text(node: ast.AST | None) -> str | None:
    """``a.b`` for an attribute of an element, ``a[0].b``, ``a.get(key).b`` or ``(a or c).b``; None for all others."""
    parts: list[str] = []
    is_element = False
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Call | ast.BoolOp | ast.IfExp):
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif isinstance(node, ast.Subscript):
            node, is_element = node.value, True
        elif isinstance(node, ast.BoolOp | ast.IfExp):
            node, is_element = node.values[0] if isinstance(node, ast.BoolOp) else node.body, True
        else:
            node, is_element = _container(node), True
    if not is_element or not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def _container(call: ast.Call) -> ast.expr | None:
    """What ``call`` takes an element of, or gives all elements of."""
    if isinstance(call.func, ast.Attribute):
        return call.func.value if call.func.attr in TAKING else None
    is_passing = isinstance(call.func, ast.Name) and call.func.id in PASSING
    return call.args[0] if is_passing and call.args else None
