"""Rule for functions that get a wrapped model and that no file names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import brief, elements
from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.wrapping import wrapping_call
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

DIFFERS = ".module, state dicts, deepcopy, clip_grad_norm_ and gathered parameters differ under FSDP2"


class UnseenFunctions(Rule):
    """Functions that get a sharded model and cannot be followed.

    A sharded model is followed into functions that are passed as values: callbacks, registries, partials, methods. If a
    function is a parameter that nothing in the project sets, or is named by a configuration, its use of the model is
    unknown. The call is reported and not changed. Results of `__getattr__` are not followed either, and are reported if
    the object contains a sharded model. In a very large project (3 MB of code beyond the relevant files, 6,000 function
    runs) not everything is followed, and the wrap is reported.
    """

    id = "FSDP223"
    name = "unseen-function"
    visits = (cst.Call, cst.FunctionDef)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model, step, batches):
    model = FSDP(model)
    for batch in batches:
        step(model, batch)
"""
    after = """
from torch.distributed.fsdp import fully_shard

def train(model, step, batches):
    fully_shard(model)
    for batch in batches:
        step(model, batch)
"""

    def visit(self, node: cst.Call | cst.FunctionDef, file: File) -> Iterable[Diagnosis]:
        """Calls that are given a wrapped model and whose function no file names."""
        if isinstance(node, cst.FunctionDef):
            yield from _passed_on(node, file)
            return
        if "bounded" in file.project.flags and file.fsdp1(node.func) == FSDP:
            yield Diagnosis(
                node.func,
                Level.REVIEW,
                "assumes code that this tool cannot see uses nothing that only FSDP1 models have",
                f"registries and factories in this project may pass it to almost any function: read the ones that "
                f"get it. {DIFFERS}",
            )
        if not known_as("unseen", node.func, file):
            return
        given = [one for argument in node.args for one in elements(argument.value) or [argument.value]]
        if any(sharded(one, file).certainty is not Certainty.NO for one in given):
            called = brief(file.code(node.func), 24)
            yield Diagnosis(
                node.func,
                Level.REVIEW,
                f"assumes {called}, which this tool cannot see, uses nothing that only FSDP1 models have",
                f"read each function that this may be: {DIFFERS}",
            )


def _passed_on(function: cst.FunctionDef, file: File) -> Iterator[Diagnosis]:
    """What to say of a ``__getattr__`` whose object holds a wrapped model."""
    if function.name.value not in ("__getattr__", "__getattribute__"):
        return
    owner = next((one for one in file.ancestors(function) if isinstance(one, cst.ClassDef)), None)
    if owner is None:
        return
    for node in file.inside(owner, cst.Attribute):
        is_own = isinstance(node.value, cst.Name) and node.value.value == "self"
        if is_own and (sharded(node, file).certainty is not Certainty.NO or _is_put(node, file)):
            message = (
                f"assumes code uses the result of {owner.name.value}.{function.name.value} only in ways that work "
                f"with FSDP2"
            )
            advice = f"this tool does not follow it: read the code that gets {file.code(node)} from there. {DIFFERS}"
            yield Diagnosis(function.name, Level.REVIEW, message, advice)
            return


def _is_put(node: cst.Attribute, file: File) -> bool:
    """Whether ``node`` is assigned a container with a wrapped model in it."""
    target = file.parent(node)
    assign = file.parent(target) if isinstance(target, cst.AssignTarget) else None
    return isinstance(assign, cst.Assign) and any(
        sharded(one, file).certainty is not Certainty.NO or wrapping_call(one, file) is not None
        for kind in (cst.Name, cst.Attribute, cst.Call)
        for one in file.inside(assign.value, kind)
    )
