"""Rule for reads of a wrapped model's parameters on some ranks only."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import takewhile

import libcst as cst

from fsdp_rules.file.ancestors import tests_above, tests_around
from fsdp_rules.file.expressions import brief
from fsdp_rules.file.file import File
from fsdp_rules.file.rank_tests import asks_for_rank
from fsdp_rules.file.reaching import definitions
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.loop._own_optimizer import own_optimizer
from fsdp_rules.loop._reductions import is_only_reported
from fsdp_rules.loop._update_numbers import is_only_kept
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.parameters import sharded_parameter, sharded_parameters
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.model.tensors import functions_given
from fsdp_rules.model.wrap_given import wrap_given
from fsdp_rules.model.wrapping import model_of_parameters
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

#: Methods that need all ranks for a sharded tensor, and attributes on the way to them.
COLLECTIVE = frozenset({"full_tensor", "item", "max", "mean", "min", "norm", "std", "sum", "tolist", "var"})
LOCAL = frozenset({"numel", "nelement"})
#: Functions that count the elements of the tensor that they are given, and those that multiply the sizes of a shape.
COUNTS = frozenset({"torch.numel", "torch.Tensor.nelement", "torch.Tensor.numel"})
PRODUCTS = frozenset({"math.prod", "numpy.prod"})
PASSED = frozenset({"abs", "cpu", "data", "detach", "float", "grad", "pow", "square", "view", "flatten"})


class RankGuards(Rule):
    """Collective under a rank test.

    FSDP1's sharded parameters are plain local tensors, so a single rank may print its shard's norm. FSDP2's are
    DTensors: a norm or a sum of the whole tensor is a collective. On a single rank, `.full_tensor()` hangs, and
    `.item()` silently returns this rank's part. `p.numel()` counts the whole tensor instead of the shard on all ranks.
    A count that decides something, or that is stored or logged in a table, is `manual`. So is a count of the
    parameters if FSDP1 has one flat parameter for each unit (`use_orig_params=False`).
    """

    id = "FSDP214"
    name = "rank-guards"
    what_to_test = "Run what only one rank does (logging, evaluation) with several processes: it must not hang."
    visits = (cst.Attribute, cst.Call)
    shim = True
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def report(model, rank):
    model = FSDP(model)
    if rank == 0:
        print([p.norm() for p in model.parameters()])
"""
    after = """
from torch.distributed.fsdp import fully_shard

def report(model, rank):
    fully_shard(model)
    if rank == 0:
        # TODO(fsdp-migrate FSDP214): p.norm() on a sharded parameter is a collective: one rank hangs or reads its shard
        print([p.norm() for p in model.parameters()])
"""

    def visit(self, node: cst.BaseExpression, file: File) -> Iterable[Diagnosis]:
        """List reads behind a test for the rank."""
        counted = _counted(node, file)
        if counted is not None:
            held = (sharded_parameters if isinstance(node, cst.Call) and node.args else sharded_parameter)(
                counted, file
            )
            own = own_optimizer(node, file)
            # An optimizer skips by it what has no elements, where a step changes nothing.
            is_silent = is_summoned(node, file) or (own is not None and not is_only_kept(counted, own, file))
            if held is not Certainty.NO and not is_silent:
                yield Diagnosis(
                    node,
                    Level.REVIEW if _is_handed_on(node, file) else Level.MANUAL,
                    f"{brief(file.code(node))} counts the whole parameter (FSDP1: this rank's shard)",
                    "use p.to_local().numel() to count the shard, which FSDP2 cuts by rows (FSDP1: by elements)",
                )
            return
        if isinstance(node, cst.Call) and _counts_flat(node, file):
            yield Diagnosis(
                node,
                Level.REVIEW if _is_handed_on(node, file) else Level.MANUAL,
                f"{brief(file.code(node))} counts all parameters (FSDP1: one flat parameter per unit)",
                "count the FSDPModules of the model instead, or expect a different number",
            )
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            return
        if node.func.attr.value not in COLLECTIVE or file.resolved(node.func) is not None:
            return
        if sharded_parameter(_root(node.func.value), file) is Certainty.NO or is_summoned(node, file):
            return
        if not _goes_on(node, file) and _on_some_ranks(node, file):
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{file.code(node)} on a sharded parameter is a collective: one rank hangs or reads its shard",
                "compute it on every rank and guard only the use of the result, or use p.to_local()",
            )


def _is_handed_on(node: cst.CSTNode, file: File) -> bool:
    """Whether the count is reported, or given to a name or a caller, so that nothing here is decided or kept by it.

    A logger that is given a table keeps it with the numbers of the run.
    """
    if isinstance(node, cst.Call) and is_only_reported(node, file) and not _is_entry(node, file):
        return True
    for around in file.ancestors(node):
        if isinstance(around, cst.Comparison | cst.Dict | cst.List | cst.Subscript | cst.BooleanOperation):
            return False
        if isinstance(around, cst.BaseStatement | cst.BaseSmallStatement):
            targets = [one.target for one in around.targets] if isinstance(around, cst.Assign) else []
            names = [one.value for one in targets if isinstance(one, cst.Name)]
            if len(names) < len(targets):
                return False
            return not _is_stored(around, names, file) and bool(
                names or isinstance(around, cst.Return | cst.Expr | cst.AugAssign)
            )
    return False


def _is_entry(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` is in an entry of a dictionary that is written in its statement."""
    in_statement = takewhile(lambda one: not isinstance(one, cst.BaseSmallStatement), file.ancestors(node))
    return any(isinstance(one, cst.DictElement) for one in in_statement)


def _is_stored(statement: cst.CSTNode, names: Collection[str], file: File) -> bool:
    """Whether what ``statement`` gives ``names`` is an entry of a display, which goes on to a log or a file."""
    if not names:
        return False
    around = file.function(statement) or file.module
    return any(
        isinstance(file.parent(use), cst.DictElement | cst.Element) and statement in (definitions(use, file) or ())
        for use in file.inside(around, cst.Name)
        if use.value in names
    )


def _counted(node: cst.CSTNode, file: File) -> cst.BaseExpression | None:
    """The parameter, or the parameters, whose elements or bytes ``node`` counts."""
    if isinstance(node, cst.Attribute):
        return _root(node.value) if node.attr.value == "nbytes" else None
    if not isinstance(node, cst.Call):
        return None
    given = [one.value for one in node.args]
    if file.resolved(node.func) in PRODUCTS and given:
        return _of_shape(given[0])
    if file.resolved(node.func) in COUNTS and given:
        return given[0]
    if isinstance(node.func, cst.Attribute) and node.func.attr.value in LOCAL and not given:
        return _of_shape(node.func.value) or _root(node.func.value)
    found = ((several, file.resolved(one)) for one, several in functions_given(node, file))
    return next((several for several, name in found if name in COUNTS), None)


def _counts_flat(call: cst.Call, file: File) -> bool:
    """Whether ``call`` says how many parameters a model has of which FSDP1 surely shows flat ones."""
    if not known_as("counted", call, file):
        return False
    model = model_of_parameters(call.args[0].value, file)
    if model is None or sharded(model, file).certainty is Certainty.NO:
        return False
    is_flat = wrap_given(model, file).keeps_originals() is Certainty.NO
    return is_flat and not is_summoned(call, file) and not is_not_sharded_yet(call, model, file)


def _of_shape(node: cst.BaseExpression) -> cst.BaseExpression | None:
    """``p`` of ``p.shape`` and ``p.size()``."""
    node = node.func if isinstance(node, cst.Call) and not node.args else node
    return _root(node.value) if isinstance(node, cst.Attribute) and node.attr.value in ("shape", "size") else None


def _root(node: cst.BaseExpression) -> cst.BaseExpression:
    while True:
        if isinstance(node, cst.Call):
            node = node.func
        elif isinstance(node, cst.Attribute) and node.attr.value in PASSED | COLLECTIVE:
            node = node.value
        else:
            return node


def _goes_on(node: cst.Call, file: File) -> bool:
    """Whether the result is only a step to another call that is listed, as ``p.norm()`` in ``p.norm().item()``."""
    parent = file.parent(node)
    return isinstance(parent, cst.Attribute) and parent.attr.value in COLLECTIVE


def _on_some_ranks(node: cst.CSTNode, file: File) -> bool:
    tests = (*(test for test, _ in tests_around(node, file)), *tests_above(node, file))
    return any(asks_for_rank(test, file) for test in tests)
