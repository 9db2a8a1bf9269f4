"""Rule for options of a program that only set arguments of FSDP1's constructor."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.project.own_keys import GONE
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: Arguments that no form of the output has: what prefetches or broadcasts under an option still does.
_DEAD = frozenset(GONE) - {"forward_prefetch"}


class OwnOptions(Rule):
    """Project options for arguments that FSDP2 does not have.

    A program that reads `limit_all_gathers`, `use_orig_params` or `backward_prefetch` from its own arguments
    (`add_argument`, fields of a configuration class) keeps the option, which then has no effect. The same is true for
    an option with any other name that the project passes to one of these arguments or to `forward_prefetch`, directly
    or through function parameters. Settings files get the same note (FSDP542).
    """

    id = "FSDP126"
    name = "own-options"
    open_world = True
    markers = tuple(
        (declared, name)
        for declared in ("add_argument", "@dataclass")
        for name in (*GONE, *(name.replace("_", "-") for name in GONE))
    )
    visits = (cst.Call, cst.AnnAssign)
    before = """
import argparse
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model):
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit-all-gathers", action="store_true")
    return FSDP(model, limit_all_gathers=parser.parse_args().limit_all_gathers)
"""
    after = """
import argparse
from torch.distributed.fsdp import fully_shard

def build(model):
    parser = argparse.ArgumentParser()
    parser.add_argument("--limit-all-gathers", action="store_true")
    return fully_shard(model)
"""

    def visit(self, node: cst.Call | cst.AnnAssign, file: File) -> Iterable[Diagnosis]:
        """Declarations of such an option."""
        name = _option(node) if isinstance(node, cst.Call) else _field(node, file)
        if name is not None and name.strip("-").replace("-", "_").removeprefix("fsdp_") in _DEAD:
            told = f"{name} has no effect under FSDP2, which has no such argument"
            yield Diagnosis(node, Level.INFO, told, "remove the option together with the code that reads it")
        elif name is not None and (place := _read(name.strip("-").replace("-", "_"), _class(node, file), file)):
            told = f"{place[0]} passes {name} to {place[1]}, which FSDP2 does not have"
            yield Diagnosis(node, Level.INFO, told, "remove the option together with the code that reads it")


def _read(name: str, owner: str | None, file: File) -> tuple[str, str] | None:
    """Where the option ``name``, a field of ``owner``, is given to an argument that is gone; None where it is not."""
    for path, found in file.project.own.items():
        for one in found:
            if one.names[-1] == name and one.is_field_of(owner, file.text):
                return path, one.argument
    return None


def _class(node: cst.CSTNode, file: File) -> str | None:
    """The class whose field ``node`` declares."""
    if isinstance(node, cst.Call):
        return None
    return next((one.name.value for one in file.ancestors(node) if isinstance(one, cst.ClassDef)), None)


def _option(node: cst.Call) -> str | None:
    """The long name of an option that ``node`` declares."""
    if not isinstance(node.func, cst.Attribute) or node.func.attr.value != "add_argument":
        return None
    names = [
        one.value.evaluated_value for one in node.args if isinstance(one.value, cst.SimpleString) and not one.keyword
    ]
    return next((name for name in names if isinstance(name, str) and name.startswith("--")), None)


def _field(node: cst.CSTNode, file: File) -> str | None:
    """The name of a field that ``node`` declares in a class."""
    if not isinstance(node, cst.AnnAssign) or not isinstance(node.target, cst.Name):
        return None
    if file.function(node) is not None or not any(isinstance(one, cst.ClassDef) for one in file.ancestors(node)):
        return None
    return node.target.value
