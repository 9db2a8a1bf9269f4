"""Which calls make one number, or one vector, of sharded parameters, and what becomes of the number."""

from __future__ import annotations

import re

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._formatted import is_formatted
from fsdp_rules.model.parameters import sharded_parameter, sharded_parameters
from fsdp_rules.model.tensors import functions_given
from fsdp_rules.project.project import Certainty

#: Methods, and functions of torch, that make a number of a tensor.
REDUCES = frozenset({"dot", "item", "max", "mean", "min", "norm", "prod", "std", "sum", "var", "vector_norm"})
#: Those that depend on which elements there are, or on their order: of a flat shard other ones than of the whole.
ORDERS = frozenset(
    {
        *("amax", "amin", "aminmax", "argmax", "argmin", "argsort", "bincount", "corrcoef", "cosine_similarity"),
        *("count_nonzero", "cov", "cumprod", "cumsum", "diff", "dist", "histc", "kthvalue", "l1_loss"),
        *("log_softmax", "logcumsumexp", "logsumexp", "median", "mode", "mse_loss", "msort", "nanmean"),
        *("nanmedian", "nanquantile", "nansum", "normalize", "quantile", "smooth_l1_loss", "softmax", "std_mean"),
        *("topk", "unique", "unique_consecutive", "var_mean"),
    }
)
#: Those of them that lists have, too.
OF_TENSORS = frozenset({"sort"})
#: Functions that make numbers of many tensors.
OF_MANY = frozenset({"_foreach_norm", "get_total_norm"})
JOINS = frozenset({"_flatten_dense_tensors", "cat", "concat", "hstack", "parameters_to_vector", "vector_to_parameters"})
COLLECTIVES = re.compile(r"^(all_gather|all_reduce|broadcast|reduce)")
PLAIN = frozenset({"float", "int", "item", "print", "str"})
REPORTS = re.compile(r"(^|_)(debug|info|log|note|print|report|scalar|warn|warning|write|summary)(s|$|_)", re.IGNORECASE)


def reduces(call: cst.Call, file: File) -> bool:
    """Whether ``call`` makes a number of the tensor that it is called on or given, or numbers of many."""
    name = last_name(call.func)
    if name not in REDUCES | ORDERS | OF_MANY | OF_TENSORS:
        return False
    return not isinstance(call.func, cst.Name) or (file.resolved(call.func) or "").startswith("torch.")


def joins(call: cst.Call, file: File) -> bool:
    """Whether ``call`` is a function of torch that makes one tensor of several."""
    return last_name(call.func) in JOINS and (file.resolved(call.func) or "").startswith("torch.")


def reduced(call: cst.Call, file: File) -> Certainty:
    """How sure it is that sharded parameters are what ``call`` reduces or joins."""
    func = call.func
    is_torch = (file.resolved(func) or "").startswith("torch.")
    if isinstance(func, cst.Attribute) and not is_torch:
        return sharded_parameter(func.value, file)
    given = [argument.value for argument in call.args[:2]]
    if last_name(func) in OF_MANY | JOINS:
        return max((sharded_parameters(node, file) for node in given), default=Certainty.NO)
    if last_name(func) in ("cosine_similarity", "dist", "dot", "l1_loss", "mse_loss", "smooth_l1_loss"):
        return max((sharded_parameter(one, file) for one in given), default=Certainty.NO)
    return sharded_parameter(given[0], file) if given else Certainty.NO


def reduced_one_by_one(call: cst.Call, file: File) -> tuple[str, Certainty]:
    """The function of torch that ``map``, ``max`` or the like calls with each parameter for a number of it, if any."""
    for function, several in functions_given(call, file):
        name = last_name(function)
        if (file.resolved(function) or "").startswith("torch.") and name in REDUCES | ORDERS | OF_TENSORS:
            return name, sharded_parameters(several, file)
    return "", Certainty.NO


def is_only_reported(call: cst.Call, file: File) -> bool:
    """Whether the number becomes a plain one, or text, and its function reduces nothing over ranks."""
    if is_formatted(call, file):
        return False
    if joins(call, file) or last_name(call.func) in OF_MANY:
        return False
    whole = file.function(call) or file.module
    if any(COLLECTIVES.search(last_name(one.func)) for one in file.inside(whole, cst.Call)):
        return False
    if last_name(call.func) == "item":
        return True
    for around in file.ancestors(call):
        if isinstance(around, cst.BaseStatement | cst.BaseSmallStatement):
            return False
        if isinstance(around, cst.FormattedStringExpression):
            return True
        if isinstance(around, cst.Call):
            name = last_name(around.func)
            if name == "tolist":
                return False
            if name in PLAIN or REPORTS.search(name):
                return True
    return False
