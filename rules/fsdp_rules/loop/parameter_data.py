"""Rule for the assignment to ``data`` of a sharded parameter."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import last_name, literal_text
from fsdp_rules.file.file import File, dotted
from fsdp_rules.loop._plain_tensors import added_plain, plain_tensor
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.parameters import NAMES, sharded_gradient, sharded_parameter
from fsdp_rules.model.sharded import sharded_owner, sharded_part
from fsdp_rules.model.summoned import is_summoned, is_written_back
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

EXCHANGE = "exchange parameters before the model is sharded, or copy into the existing one (parameter.data.copy_(x))"
IN_PLACE = (
    "assign before the model is sharded, change the data in place (parameter.data.mul_(x)), or copy "
    "from a DTensor with the same placements (parameter.data.copy_(x))"
)
ITSELF = "assign the gradient itself (parameter.grad = x); under FSDP2, x must be a DTensor with the same placements"
FORGOTTEN = "FSDP1 drops this when summon_full_params ends, and FSDP2 keeps it"
BEFORE = (
    "to keep the numbers, remove the line. To get the intended behaviour, keep it (under FSDP1, copy into the "
    "parameter: "
    "parameter.data.copy_(x))"
)
NOTHING = "assigning to .data of a sharded FSDP2 {what} silently changes nothing"


class ParameterData(Rule):
    """Assignment to parameter.data.

    FSDP1's parameters are plain tensors, and the units read the new values at their next forward. Under FSDP2 a
    parameter is a DTensor: the assignment raises no error, and neither its values nor its dtype change. It works as
    before on a model that is not sharded yet, and in-place changes (`parameter.data.mul_(x)`) work on both. The same is
    true for a gradient: `parameter.grad.data = x` changes nothing, `parameter.grad = x` does. Inside
    `summon_full_params` it is the other way round: FSDP1 writes back its own tensor and drops a new one
    (`parameter.data = x`, `layer.weight = nn.Parameter(x)`), while FSDP2 keeps the new one.
    """

    id = "FSDP217"
    name = "parameter-data"
    markers = (".data = ", ("setattr(", "data"))
    what_to_test = EFFECT
    visits = (cst.AssignTarget, cst.AugAssign, cst.Call)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def decay(model, rate):
    model = FSDP(model)
    for parameter in model.parameters():
        parameter.data = parameter.data * rate
    return model
"""
    after = """
from torch.distributed.fsdp import fully_shard

def decay(model, rate):
    fully_shard(model)
    for parameter in model.parameters():
        # TODO(fsdp-migrate FSDP217): assigning to .data of a sharded FSDP2 parameter silently changes nothing
        parameter.data = parameter.data * rate
    return model
"""

    def visit(self, node: cst.AssignTarget | cst.AugAssign | cst.Call, file: File) -> Iterable[Diagnosis]:
        """What runs over the parameters of a wrapped model, below where it is wrapped."""
        if isinstance(node, cst.Call):
            yield from _read(node, plain_tensor(node, file), f"{file.code(node.func)}()", file)
        elif isinstance(node, cst.AugAssign):
            yield from _read(
                node, added_plain(node, file), f"{file.code(node.target)} {file.code(node.operator).strip()}", file
            )
        assigned = _assigned(node)
        gathered = is_summoned(node, file)
        if assigned is None or _is_itself(node, file) or (gathered and not is_written_back(node, file)):
            return
        owner, attribute = assigned
        if attribute in NAMES:
            held, advice = sharded_part(owner, file), EXCHANGE
            changes = f"{attribute} is a sharded parameter, and FSDP2 still uses the old parameter"
        elif (held := sharded_gradient(owner, file)) is not Certainty.NO:
            changes, advice = NOTHING.format(what="gradient"), ITSELF
            held = Certainty.NO if gathered else held
        else:
            held, advice = max(sharded_parameter(owner, file), _owner(owner, file)), IN_PLACE
            changes = NOTHING.format(what="parameter")
        if gathered:
            changes, advice = FORGOTTEN, BEFORE
        if held is Certainty.NO or (held is Certainty.MAYBE and _shards_itself(node, file)):
            return
        yield Diagnosis(
            node.target if isinstance(node, cst.AssignTarget) else node,
            Level.MANUAL,
            changes if held is Certainty.YES else f"if this model is sharded here, {changes}",
            advice,
        )


def _assigned(node: cst.CSTNode) -> tuple[cst.BaseExpression, str] | None:
    """The object to whose parameter, or parameter's data, ``node`` gives another value, and which it is."""
    if isinstance(node, cst.AssignTarget) and isinstance(node.target, cst.Attribute):
        owner, attribute = node.target.value, node.target.attr.value
    elif isinstance(node, cst.Call) and last_name(node.func) == "setattr" and len(node.args) == 3:
        name = node.args[1].value
        owner = node.args[0].value
        attribute = literal_text(name) or ""
    else:
        return None
    return (owner, attribute) if attribute in {"data", *NAMES} else None


def _is_itself(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` gives a parameter the data that it has, changed in place."""
    statement = file.parent(node)
    return isinstance(statement, cst.Assign) and known_as("kept_part", statement.value, file)


def _read(node: cst.CSTNode, held: Certainty, name: str, file: File) -> Iterable[Diagnosis]:
    """The verdict about ``node``, called ``name``, which takes a parameter for a plain tensor as surely as ``held``."""
    if held is Certainty.NO or is_summoned(node, file) or (held is Certainty.MAYBE and _shards_itself(node, file)):
        return
    raises = f"{name} fails because it mixes a sharded FSDP2 parameter with plain tensors"
    yield Diagnosis(
        node,
        Level.MANUAL,
        raises if held is Certainty.YES else f"if this model is sharded here, {raises}",
        "use parameter.to_local(), this rank's shard, which FSDP2 cuts by rows (FSDP1: by elements), or "
        "parameter.full_tensor() on all ranks",
    )


def _owner(parameter: cst.BaseExpression, file: File) -> Certainty:
    """Whether ``parameter`` is an attribute, at any depth, of what is surely a wrapped model."""
    owned = isinstance(parameter, cst.Attribute) and sharded_owner(parameter.value, file) is not None
    return Certainty.YES if owned else Certainty.NO


def _shards_itself(node: cst.CSTNode, file: File) -> bool:
    """Whether the function around ``node`` calls fully_shard further down: its model is not sharded yet."""
    function = file.function(node)
    return any(
        (dotted(call.func) or "").rpartition(".")[2] == "fully_shard"
        and file.function(call) is function
        and file.span(call).line > file.span(node).line
        for call in file.nodes(cst.Call)
    )
