"""The Trainer that takes a strategy, over how many devices it trains, and the modules that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.hosts._values import literal

_STEPS = ("fit", "validate", "test", "predict")
_TRAINERS = tuple(f"{package}.Trainer" for package in ("lightning", "lightning.pytorch", "pytorch_lightning"))
#: The dtype in which FSDP1 computes and reduces under each precision, "" for the parameters' own.
_PRECISIONS = {"32-true": "", "32": "", "bf16-true": "", "bf16": "bfloat16", "bf16-mixed": "bfloat16"}
_LOW = "assumes buffers may keep their dtype, and units may cast their inputs to the dtype of autocast"
_ORDER = "assumes gradients may be summed in a different order: FSDP2 reduces those of every batch, FSDP1 their sum"
_STOPS = "Lightning stops at startup if the number is different"


@dataclass
class Trained:
    """``size`` is the text of the number of ranks, ``low`` the dtype of mixed precision, ``assumed`` are statements to
    review, each with its advice. ``reason`` says why nothing can be said, empty if all is known. ``elsewhere`` is the
    dotted name of the module's class where another file defines it.
    """

    module: cst.ClassDef | None = None
    elsewhere: str = ""
    size: str = ""
    low: str = ""
    assumed: list[tuple[str, str]] = field(default_factory=list)
    reason: str = ""


def trained(strategy: cst.Call, file: File) -> Trained:
    """What the file says of the Trainer that takes ``strategy``."""
    trainers = [one for one in file.nodes(cst.Call) if _takes(one, strategy, file)]
    if len(trainers) != 1:
        return Trained(reason="this file does not pass it to exactly one Trainer")
    found = Trained()
    given = {key_of(one): one.value for one in trainers[0].args}
    if None in given:
        found.reason = "not all of the Trainer's arguments are written out here"
        return found
    arguments = {name: value for name, value in given.items() if name}
    precision = literal(arguments["precision"], file) if "precision" in arguments else None
    word = str(precision.plain) if precision and precision.known else "32-true" if precision is None else ""
    if word not in _PRECISIONS or "plugins" in arguments:
        found.reason = f"ModelParallelStrategy has no precision {word or 'that this tool can see'}"
        return found
    found.low = _PRECISIONS[word]
    if found.low:
        found.assumed.append((_LOW, "Compare the losses of a few steps"))
    several = arguments.get("accumulate_grad_batches")
    if several is not None and literal(several, file).plain != 1:
        found.assumed.append((_ORDER, "Compare the losses of a few steps"))
    _size(found, arguments, file)
    is_local = "." in found.size.replace("torch.cuda", "") or found.size.isidentifier()
    if is_local and file.function(strategy) is not file.function(trainers[0]):
        found.reason = "the number of its devices is set in another function"
    if clip := _on(arguments.get("gradient_clip_algorithm"), file):
        found.reason = f"the Trainer clips gradients by {clip}"
    names = set(_modules(trainers[0], file))
    classes = {one.name.value: one for one in file.nodes(cst.ClassDef)}
    name = names.pop() if len(names) == 1 else ""
    if name in classes:
        found.module = classes[name]
    elif "." in name:
        found.elsewhere = name
    else:
        found.reason = found.reason or "this tool finds no LightningModule in this file that the Trainer trains"
    return found


def class_of(node: cst.BaseExpression, file: File) -> str:
    """The class that makes ``node``: its name in this file, its dotted name elsewhere; empty where none is seen."""
    made = _origin(node, file)
    if not isinstance(made, cst.Call):
        return ""
    if isinstance(made.func, cst.Name) and made.func.value in {one.name.value for one in file.nodes(cst.ClassDef)}:
        return made.func.value
    full = file.resolved(made.func) or ""
    return full if full.rpartition(".")[2][:1].isupper() else ""


def _on(node: cst.BaseExpression | None, file: File) -> str:
    value = literal(node, file) if node is not None else None
    return "" if value is None or value.plain is None else str(value.plain)


def _takes(call: cst.Call, strategy: cst.Call, file: File) -> bool:
    if file.resolved(call.func) not in _TRAINERS:
        return False
    given = next((one.value for one in call.args if key_of(one) == "strategy"), None)
    return given is not None and _origin(given, file) is strategy


def _origin(node: cst.BaseExpression, file: File) -> cst.BaseExpression:
    """What ``node`` is made by, followed through names and functions at the top of the file that return one value."""
    made = file.value(node)
    if not isinstance(made, cst.Call) or not isinstance(made.func, cst.Name):
        return made
    name = made.func.value
    found = [one for one in file.layout.module.body if isinstance(one, cst.FunctionDef) and one.name.value == name]
    returned = [one.value for one in file.inside(found[0], cst.Return)] if len(found) == 1 else []
    value = returned[0] if len(returned) == 1 else None
    if value is None or (found[0].asynchronous or found[0].decorators):
        return made
    inner = file.value(value)
    return inner if isinstance(inner, cst.Call) else made


def _size(found: Trained, arguments: dict[str, cst.BaseExpression], file: File) -> None:
    devices, nodes = arguments.get("devices"), arguments.get("num_nodes")
    known = literal(devices, file) if devices is not None else None
    if known is None or (known.known and known.plain in ("auto", -1, "-1", None)):
        text = f"{file.ref('torch.cuda.device_count')}()"
    elif known.known and str(known.plain).isdigit():
        text = str(known.plain)
    else:
        text = file.code(devices) if devices is not None else ""
        found.assumed.append(("assumes devices is a number of GPUs", _STOPS))
        if not isinstance(devices, cst.Name | cst.Attribute | cst.Call):
            found.reason = "this tool cannot see the number of its devices"
    machines = literal(nodes, file) if nodes is not None else None
    if machines and text.isdigit() and isinstance(machines.plain, int):
        text = str(int(text) * machines.plain)
    elif nodes is not None and machines and machines.plain != 1:
        text = f"{text} * {file.code(nodes)}"
    found.size = text


def _modules(trainer: cst.Call, file: File) -> Iterator[str]:
    """The classes of the modules that ``trainer`` is given, by their names; "" for an unseen one."""
    for call in file.nodes(cst.Call):
        func = call.func
        if not isinstance(func, cst.Attribute) or func.attr.value not in _STEPS:
            continue
        if func.value is not trainer and _origin(func.value, file) is not trainer:
            continue
        given = [one.value for one in call.args if key_of(one) in (None, "model") and not one.star]
        if given or func.attr.value == "fit":
            yield class_of(given[0], file) if given else ""
