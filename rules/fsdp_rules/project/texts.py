"""What single expressions say by their own text, wherever they are."""

from __future__ import annotations

import ast
import re

from fsdp_rules.project.aliases import Aliases, text_of

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
#: The same, with the modules and the tuples that have what they are given as their elements.
HOLDING = PASSING | {"ModuleDict", "ModuleList", "Sequential", "_replace"}
#: Methods of containers that give what is in them.
TAKING = frozenset({"values", "items", "get", "pop", "popleft", "copy", "__getitem__"})
#: What stands beside models in tuples, by what people call it.
NO_MODEL = re.compile(
    r"^opts?$|optim|sched|loss|data|loader|batch|args|conf|cfg|scaler|tokenizer|processor|step|epoch|lr$|rank|device|seed",
    re.IGNORECASE,
)
#: What the name of a callee that has no dotted name starts with.
UNNAMED = "@"
#: What stands before the name of a method of an object that nothing is known of, but for what makes it.
SOME = "?."


def unnamed(node: ast.expr, aliases: Aliases) -> str:
    """What the callee ``node`` goes by that has no dotted name: its place, behind what makes it where that is said.

    ``Trainer(model).fit`` is ``Trainer().fit``.
    """
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Call):
        maker = aliases.dotted(node.value.func)
        if maker is not None and not maker.endswith("import_module"):
            return f"{maker}().{node.attr}"
    return f"{UNNAMED}{node.lineno}:{node.col_offset}"


def method_of_some(node: ast.expr, aliases: Aliases) -> str | None:
    """What the method ``node`` of an element, or of what a function gives, goes by: ``KINDS[kind]().wrap``."""
    if not isinstance(node, ast.Attribute) or isinstance(node.value, ast.Constant | ast.JoinedStr):
        return None
    maker = aliases.dotted(node.value.func) if isinstance(node.value, ast.Call) else None
    if maker is None:
        return f"{SOME}{node.attr}"
    # A class says what its methods are.
    return None if maker.rpartition(".")[2][:1].isupper() else f"{maker}(){SOME}{node.attr}"


def lambda_name(node: ast.Lambda, scope: str) -> str:
    """The qualified name that a lambda goes by."""
    return f"{scope}.<lambda {node.lineno}:{node.col_offset}>".lstrip(".")


def owner_of(node: ast.Call) -> str:
    """Whose names ``getattr`` or ``globals`` gives: the text of a module or an object, "" where it has none."""
    if not node.args or ast.unparse(node.args[0]) == "sys.modules[__name__]":
        return "globals()"
    return text_of(node.args[0]) or ""


def prefix_of(node: ast.Call) -> str:
    """What the name that ``getattr`` is asked for starts with."""
    name = node.args[1] if len(node.args) > 1 else None
    first = name.values[0] if isinstance(name, ast.JoinedStr) and name.values else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def key_of(node: ast.Subscript) -> str | None:
    index = node.slice
    return index.value if isinstance(index, ast.Constant) and isinstance(index.value, str) else None


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
