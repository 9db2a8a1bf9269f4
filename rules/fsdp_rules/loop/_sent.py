"""What collectives are given: tensors, lists of them, or a whole model."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.file.expressions import elements, last_name
from fsdp_rules.file.file import File
from fsdp_rules.model.sharded import sharded_source
from fsdp_rules.model.wrapping import model_of_parameters
from fsdp_rules.project.project import Certainty

#: Functions of torch.distributed under which a DTensor raises or hangs, or whose result counts it twice.
COLLECTIVES = frozenset(
    {
        *("_all_gather_base", "_broadcast_coalesced", "_reduce_scatter_base", "_sync_module_states"),
        *("_sync_params_and_buffers", "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_reduce"),
        *("all_reduce_coalesced", "all_to_all", "all_to_all_single", "broadcast", "gather", "irecv", "isend", "recv"),
        *("reduce", "reduce_scatter", "reduce_scatter_tensor", "scatter", "send"),
    }
)
#: What a parameter is behind in a collective.
PASSED_ON = frozenset({"contiguous", "data", "detach"})


def is_collective(call: cst.Call, file: File) -> bool:
    """Whether ``call`` is a collective, or sends to one rank."""
    return last_name(call.func) in COLLECTIVES and (file.resolved(call.func) or "").startswith("torch.distributed.")


def sent(call: cst.Call, file: File) -> Iterator[tuple[cst.BaseExpression, cst.BaseExpression]]:
    """Every argument of the collective ``call`` that may be a tensor, and what that is the data of."""
    for argument in call.args:
        inner = argument.value
        if isinstance(inner, cst.Call) and isinstance(inner.func, cst.Attribute) and not inner.args:
            inner = inner.func if inner.func.attr.value in PASSED_ON else inner
        if isinstance(inner, cst.Attribute) and inner.attr.value in PASSED_ON:
            inner = inner.value
        yield argument.value, inner


def sent_together(call: cst.Call, file: File) -> cst.BaseExpression | None:
    """The argument of the collective ``call`` that is all of a sharded model's parameters, or the model."""
    for argument in call.args:
        value = argument.value
        model = model_of_parameters(value, file)
        if model is None and last_name(call.func) == "_sync_module_states":
            model = value
        for one in elements(value) or []:
            model = model_of_parameters(one, file) or model
        if model is not None and sharded_source(model, file) is not Certainty.NO:
            return value
    return None
