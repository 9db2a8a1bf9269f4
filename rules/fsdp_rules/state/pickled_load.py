"""Rule for ``torch.load`` of what torch 2.6 refuses by default."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of, keyed_call
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import RESUME

#: Names that people give to objects with settings: namespaces, dataclasses, configurations of libraries.
_SETTINGS = re.compile(r"(^|_)(args?|cfg|conf|config|hparams|opts?|options|params|settings)$")
#: Functions that give plain values of such an object, and of any other.
_PLAIN = frozenset({"asdict", "bool", "dict", "float", "getstate", "int", "len", "list", "str", "to_container", "vars"})


class PickledLoad(Rule):
    """torch.load() without weights_only.

    FSDP2 needs torch 2.6, where `torch.load` loads with `weights_only=True` by default. That allows tensors and plain
    values, and rejects every other class: an `argparse.Namespace`, a dataclass or a numpy state in the same file. If
    the project may run on an older torch, which loads them now, the rewrite adds `weights_only=False`. Load only files
    that you trust in this way. If you save settings as a dictionary (`vars(args)`), you can drop the argument.
    """

    id = "FSDP316"
    name = "pickled-load"
    what_to_test = RESUME
    markers = (("torch.load(", "torch.save("),)
    visits = (cst.Call,)
    shim = True
    before = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def save(args, step, path):
    torch.save({"args": args, "step": step}, path)

def load(net, path):
    return FSDP(net), torch.load(path, map_location="cpu")
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def save(args, step, path):
    torch.save({"args": args, "step": step}, path)

def load(net, path):
    return fully_shard(net), torch.load(path, map_location="cpu", weights_only=False)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Loads in a file that saves what they would refuse."""
        if not file.settings.raises_torch or file.resolved(node.func) != "torch.load":
            return
        if "fsdp1" not in file.project.tree_flags or any(key_of(one) == "weights_only" for one in node.args):
            return
        saved = next(_pickled(file), None)
        if saved is None:
            return
        refused = f"since torch 2.6, torch.load rejects {file.code(saved)} by default"
        given = next((one.value for one in node.args if one.star), None)
        if given is not None:
            if not _has_key(given, file):
                text = f"assumes {file.code(given)} has weights_only=False: {refused}"
                yield Diagnosis(node, Level.REVIEW, text, "give weights_only=False there if the file is trusted")
            return
        yield Diagnosis(
            node,
            Level.REVIEW,
            f"assumes this file is trusted: {refused}",
            "save plain values (vars(args)) and load with weights_only=True if you can",
            edits=(Replace(node, lambda code: keyed_call(node, {"weights_only": "False"}, {}, code, file)),),
        )


def _has_key(given: cst.BaseExpression, file: File) -> bool:
    """Whether the dictionary ``given`` is written with ``weights_only`` in it."""
    return "weights_only" in file.code(file.value(given))


def _pickled(file: File) -> Iterator[cst.BaseExpression]:
    """What the file saves that is neither a tensor nor a plain value."""
    for call in file.nodes(cst.Call):
        if file.resolved(call.func) == "torch.save" and call.args:
            for part in _parts(file.value(call.args[0].value), file):
                if _is_object(part, file):
                    yield part


def _parts(saved: cst.BaseExpression, file: File) -> Iterator[cst.BaseExpression]:
    """The values of a dictionary, of those in it too."""
    if isinstance(saved, cst.Dict):
        for element in saved.elements:
            if isinstance(element, cst.DictElement):
                yield from _parts(element.value, file)
    elif isinstance(saved, cst.Call) and isinstance(saved.func, cst.Name) and saved.func.value == "dict":
        for argument in saved.args:
            if argument.keyword is not None:
                yield from _parts(argument.value, file)
    else:
        yield saved


def _is_object(node: cst.BaseExpression, file: File) -> bool:
    value = file.value(node)
    if isinstance(value, cst.Call):
        name, full = last_name(value.func), file.resolved(value.func) or ""
        if name in _PLAIN or full.startswith("torch."):
            return False
        return full.startswith("numpy.") or name.startswith("parse_") or name[:1].isupper()
    is_name = isinstance(value, cst.Name | cst.Attribute)
    return is_name and _SETTINGS.search(last_name(value).lower()) is not None
