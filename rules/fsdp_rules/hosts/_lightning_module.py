"""A LightningModule that builds its model in ``configure_model``: what is sharded there, and why it may not be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from fsdp_rules.file.expressions import call_of, elements, is_none, last_name
from fsdp_rules.file.file import File
from fsdp_rules.hosts._lightning_given import passed_on

_BASES = ("lightning.LightningModule", "lightning.pytorch.LightningModule", "pytorch_lightning.LightningModule")
#: What a module's method may be asked under FSDP2 as well.
_PLAIN = frozenset(
    {"parameters", "named_parameters", "modules", "named_modules", "children", "named_children", "buffers", "train"}
    | {"eval", "requires_grad_", "named_buffers", "zero_grad"}
)
#: What gives or takes whole states, which the shards of FSDP2 are not.
_STATES = frozenset({"state_dict", "load_state_dict", "to", "apply", "save_pretrained"})
#: Calls that give a module parameters without an assignment.
_ADDING = frozenset({"setattr", "add_module", "register_module", "register_parameter"})
#: Calls whose results hold no parameters, by the last part of their names.
_DATA = frozenset(
    {"dict", "list", "set", "tuple", "int", "float", "str", "bool", "len", "range", "max", "min", "device"}
)
_FREE = ("torchmetrics.", "os.", "math.", "json.", "pathlib.", "logging.", "transformers.AutoTokenizer")
#: Methods that modules have and settings do not.
_OF_MODULES = frozenset(
    {
        "decode",
        "encode",
        "eval",
        "forward",
        "generate",
        "modules",
        "parameters",
        "requires_grad_",
        "state_dict",
        "train",
    }
)


@dataclass
class Built:
    """``roots`` are the attributes that hold models, by the names of ``self``; ``last`` is the statement that the
    sharding follows, ``methods`` what is called on each root besides itself. ``reason`` says why the class is kept.
    """

    this: str = "self"
    roots: list[str] = field(default_factory=list)
    last: cst.CSTNode | None = None
    methods: dict[str, list[str]] = field(default_factory=dict)
    reason: str = ""


def built(node: cst.ClassDef, layers: list[str], file: File) -> Built:
    """What ``node`` builds in its ``configure_model``."""
    found = Built()
    name = node.name.value
    methods = {one.name.value: one for one in node.body.body if isinstance(one, cst.FunctionDef)}
    place = methods.get("configure_model")
    if [file.resolved(one.value) for one in node.bases] not in [[base] for base in _BASES]:
        found.reason = f"{name} extends more than LightningModule"
    elif place is None or not place.params.params or place.decorators:
        found.reason = f"{name} has no configure_model"
    if found.reason or place is None:
        return found
    found.this = place.params.params[0].name.value
    found.reason = _roots(place, layers, found, file)
    for method in (methods.get("__init__"), methods.get("setup")) if not found.reason else ():
        for made in _made(method, found, file):
            found.reason = f"{made} may have parameters that configure_model would not shard"
    if not found.reason and (given := passed_on(node, methods.get("__init__"), found.this, file)):
        found.reason = f"{given} is passed to other code, and may have parameters that configure_model would not shard"
    if not found.reason and any(last_name(call.func) in _ADDING for call in file.inside(node, cst.Call)):
        found.reason = f"{name} gets modules without an assignment"
    for use in file.inside(node, cst.Attribute) if not found.reason else ():
        if _is_mine(use, found) and use.attr.value in found.roots:
            found.reason = found.reason or _use(use, found, file)
    return found


def _is_mine(node: cst.Attribute, found: Built) -> bool:
    return isinstance(node.value, cst.Name) and node.value.value == found.this


def _assigned(
    place: cst.FunctionDef, found: Built, file: File
) -> Iterator[tuple[cst.CSTNode, str, cst.BaseExpression]]:
    assigns: list[cst.Assign | cst.AnnAssign] = [*file.inside(place, cst.Assign), *file.inside(place, cst.AnnAssign)]
    for assign in assigns:
        targets = [one.target for one in assign.targets] if isinstance(assign, cst.Assign) else [assign.target]
        for target in targets:
            for one in elements(target) or [target] if isinstance(target, cst.Tuple | cst.List) else [target]:
                if isinstance(one, cst.Attribute) and _is_mine(one, found) and assign.value is not None:
                    yield assign, one.attr.value, assign.value


def _roots(place: cst.FunctionDef, layers: list[str], found: Built, file: File) -> str:
    blocks: list[list[cst.CSTNode]] = []
    for statement, name, value in _assigned(place, found, file):
        if is_none(value) or _holds_nothing(value, file):
            continue
        func = value.func if isinstance(value, cst.Call) else None
        full = (file.resolved(func) or file.code(func)) if func is not None else ""
        if func is None or full.startswith("torch.compile") or file.fsdp1(func):
            return f"configure_model makes {name} in a way that this tool does not follow"
        if file.code(func) in layers:
            return f"{name} is itself an instance of a class in the policy"
        block = file.block(statement)
        if block not in blocks:
            blocks.append(block)
        if name not in found.roots:
            found.roots.append(name)
    if any(file.fsdp1(call.func) for call in file.inside(place, cst.Call)):
        return "configure_model wraps the model itself"
    if len(blocks) != 1:
        return "configure_model builds no model" if not blocks else "configure_model builds models in several blocks"
    if len(found.roots) > 1:
        return f"configure_model makes {' and '.join(found.roots)}, and this tool cannot say which are models"
    found.last = blocks[0][-1]
    return ""


def _holds_nothing(value: cst.BaseExpression, file: File) -> bool:
    """Whether a value surely has no parameters."""
    if not isinstance(value, cst.Call):
        return not any(isinstance(one, cst.Call) for one in file.inside(value, cst.Call))
    full = file.resolved(value.func) or file.code(value.func)
    last = full.rpartition(".")[2]
    is_loss = full.startswith("torch.nn.") and last.endswith(("Loss", "Softmax", "ReLU", "GELU", "Dropout", "Identity"))
    return is_loss or full in _DATA or full.startswith(_FREE) or last == "device"


def _made(method: cst.FunctionDef | None, found: Built, file: File) -> Iterator[str]:
    """The attributes that ``method`` gives values that may have parameters."""
    for _, name, value in _assigned(method, found, file) if method is not None else ():
        if not _holds_nothing(value, file) or _is_used_as_module(f"{found.this}.{name}", value, file):
            yield f"{found.this}.{name} of {method.name.value if method else ''}"


def _is_used_as_module(text: str, value: cst.BaseExpression, file: File) -> bool:
    """Whether the attribute ``text``, which some ``value`` of another place is given to, is called as a model is."""
    if isinstance(value, cst.BaseNumber | cst.BaseString | cst.Call) or is_none(value):
        return False
    called = (call.func for call in file.nodes(cst.Call))
    return any(
        file.code(func) == text
        or (isinstance(func, cst.Attribute) and func.attr.value in _OF_MODULES and file.code(func.value) == text)
        for func in called
    )


def _use(use: cst.Attribute, found: Built, file: File) -> str:
    """Why a use of a model is in the way, empty if it is not; calls of its methods are noted."""
    parent = file.parent(use)
    name = use.attr.value
    if isinstance(parent, cst.AssignTarget | cst.AnnAssign | cst.Comparison | cst.ComparisonTarget):
        return ""
    if call_of(use, file) is not None:
        return ""
    if isinstance(parent, cst.Attribute) and call_of(parent, file) is not None:
        method = parent.attr.value
        if _is_inside_configure_model(use, file):
            return ""
        if method in _STATES:
            return f"line {file.span(use).line} calls {name}.{method}(), which returns shards under FSDP2"
        if method not in _PLAIN and method not in found.methods.setdefault(name, []):
            found.methods[name].append(method)
        return ""
    if isinstance(parent, cst.Arg) and _is_inside_configure_model(use, file):
        return ""
    return f"line {file.span(use).line} uses {name} in a way that this tool does not follow"


def _is_inside_configure_model(node: cst.CSTNode, file: File) -> bool:
    function = file.function(node)
    return function is not None and function.name.value == "configure_model"
