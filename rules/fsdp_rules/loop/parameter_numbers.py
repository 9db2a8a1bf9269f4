"""Rule for numbers that a program takes from sharded parameters: norms, sums and vectors of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._aware import is_aware
from fsdp_rules.loop._flat_shards import flat_uses
from fsdp_rules.loop._formatted import is_formatted
from fsdp_rules.loop._own_optimizer import own_optimizer
from fsdp_rules.loop._reductions import is_only_reported, joins, reduced, reduced_one_by_one, reduces
from fsdp_rules.loop.rank_guards import RankGuards
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

ADVICE = (
    "use p.to_local(), this rank's shard, which FSDP2 cuts by rows (FSDP1: by elements), so that only sums over ranks "
    "are FSDP1's, or p.full_tensor() on all ranks. Use to_local() for a sum of squares that is all-reduced. Without "
    "the all_reduce, full_tensor() of the result is a plain tensor"
)
#: torch 2.13: ``mean`` and ``std`` are of the whole parameter, ``norm``, ``max`` and ``sum`` become the rank's part by
#: ``.item()`` or ``float``.
CHANGED = "{name} covers the whole parameter or this rank's part of it (FSDP1: a flat shard)"
FORMATTED = "{name} of a DTensor raises an error in formats such as f'{{number:.3f}}' (FSDP1: a plain tensor)"
REPORTED = (
    "p.full_tensor() on all ranks is the whole parameter; p.to_local() is this rank's part. Do not compare it with "
    "the values of FSDP1's run"
)


class ParameterNumbers(Rule):
    """Norms and other numbers of parameters by hand.

    Between forwards, FSDP1's parameters are plain tensors, this rank's own flat shard. FSDP2's are DTensors, also under
    `fsdp_compat`: a norm or a sum covers the whole parameter and is itself a DTensor. It raises in collectives and when
    it is combined with a plain tensor, and reducing it again counts it several times. Joining parameters into one
    vector raises if a rank's shards have uneven sizes, and so does formatting such as `f"{norm:.3f}"`. A value that is
    only reported changes too: it covers the whole parameter, or this rank's rows. Code that works on the flat shard
    does something else under FSDP2: `p[0]` is a row of the whole parameter, `p.view(-1)` raises for uneven shards, and
    `p.data_ptr()` is 0 for every DTensor.
    """

    id = "FSDP227"
    name = "parameter-numbers"
    markers = (".parameters()", "parameters_to_vector")
    what_to_test = "Compare the norms of the parameters with those of the old code on all ranks."
    visits = (cst.Module,)
    shim = True
    before = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(model):
    model = FSDP(model)
    total = sum(parameter.detach().pow(2).sum() for parameter in model.parameters())
    dist.all_reduce(total)
    return total.sqrt()
"""
    after = """
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

def train(model):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP227): sum() covers the whole parameter and is a DTensor (FSDP1: this rank's plain shard)
    total = sum(parameter.detach().pow(2).sum() for parameter in model.parameters())
    dist.all_reduce(total)
    return total.sqrt()
"""

    def visit(self, node: cst.Module, file: File) -> Iterable[Diagnosis]:
        """Every number that is taken of a parameter."""
        if "fsdp1" not in file.project.flags:
            return
        # A number and the parameter that it is of are two findings about one statement.
        told: dict[cst.CSTNode, Level] = {}
        flat = ((place, held, Level.MANUAL, text) for place, held, text in flat_uses(file))
        for place, held, level, text in (*_taken(file), *flat):
            if is_summoned(place, file) or is_aware(place, file):
                continue
            owner = own_optimizer(place, file)
            # FSDP228 reports those of optimizers that reduce nothing over ranks.
            if owner is not None and "all_reduce" not in file.code(owner):
                continue
            if any(found.level is Level.MANUAL for found in RankGuards().visit(place, file)):
                continue
            if told.get(file.statement(place)) in (level, Level.MANUAL):
                continue
            told[file.statement(place)] = level
            message = text if held is Certainty.YES else f"if this model is sharded: {text}"
            yield Diagnosis(place, level, message, REPORTED if level is Level.REVIEW else ADVICE)


def _taken(file: File) -> Iterator[tuple[cst.Call, Certainty, Level, str]]:
    """Every call that takes a number of sharded parameters, or joins them: how sure they are, and what comes of it."""
    for call in file.nodes(cst.Call):
        if reduces(call, file) or joins(call, file):
            name, held = last_name(call.func), reduced(call, file)
        else:
            name, held = reduced_one_by_one(call, file)
        if held is not Certainty.NO:
            level = Level.REVIEW if is_only_reported(call, file) else Level.MANUAL
            yield call, held, level, _text(f"{name}()", call, level, file)


def _text(name: str, call: cst.Call, level: Level, file: File) -> str:
    if last_name(call.func) == "vector_to_parameters":
        return f"{name} silently changes nothing in DTensors (FSDP1: plain shards)"
    if joins(call, file):
        return f"{name} of DTensors raises for uneven shards (FSDP1: plain shards)"
    if level is Level.REVIEW:
        return CHANGED.format(name=name)
    if is_formatted(call, file):
        return FORMATTED.format(name=name)
    return f"{name} covers the whole parameter and is a DTensor (FSDP1: this rank's plain shard)"
