"""Rule for gradients that are cleared between a forward and its backward."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.kept_clearing import is_carried, kept_clearings
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule

KEEPS = "FSDP1 adds to the old gradients of the last unit of a model; this clears them"
MOVE = "move this above the forward, where both clear all gradients, and compare the losses"
NOTHING = "this clears nothing, as under FSDP1: until the backward, the registered parameters are gathered ones"
ABOVE = "to clear the gradients, move this above the forward"
UNSURE = "if the strategy keeps units gathered, with use_orig_params=True: FSDP1 keeps gradients that this now clears"


class ClearedBetween(Rule):
    """zero_grad() between a forward and its backward.

    With `use_orig_params=True`, and SHARD_GRAD_OP or _HYBRID_SHARD_ZERO2, FSDP1 keeps units gathered from their forward
    to their backward, and does not check the gradients of the original parameters in between. The root notices a
    gradient that an optimizer set to None only when its own backward starts. A unit whose output is the output of the
    whole model starts earlier, and adds the new gradient to the old one. So does a unit with parameters of several
    optimizers if not all of them are cleared. Under FSDP2, an optimizer clears its gradients at any point.
    `fsdp_compat.shard` keeps what FSDP1 keeps, and the output calls it if FSDP1's constructor wraps the model in any
    file of the tree. Code migrated with `--to shim` behaves like FSDP1 too. If other code wraps the model, the finding
    is `manual`. In between, the registered parameters are gathered under both: `model.zero_grad()` and a loop over
    `model.parameters()` clear nothing, so they are unchanged. Nothing differs under the other strategies, without
    `use_orig_params=True`, with `set_to_none=False`, or before the forward.
    """

    id = "FSDP238"
    name = "cleared-between"
    markers = (".zero_grad(",)
    what_to_test = "Compare the losses of the first three steps with those of the old code."
    visits = (cst.Module,)
    before = """
import functools
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy

wrap = functools.partial(FSDP, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP, use_orig_params=True)

def train(net, batches):
    net.head = wrap(net.head)
    model = wrap(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        loss = model(batch).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
    after = """
import torch
from torch.distributed.fsdp import fully_shard

def train(net, batches):
    fully_shard(net.head, reshard_after_forward=False)
    model = fully_shard(net, reshard_after_forward=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        loss = model(batch).sum()
        # TODO(fsdp-migrate FSDP238): FSDP1 adds to the old gradients of the last unit of a model; this clears them
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""

    def visit(self, node: cst.Module, file: File) -> Iterable[Diagnosis]:
        """Every place that clears gradients of which FSDP1 keeps some."""
        if "fsdp1" not in file.project.flags:
            return
        for found in kept_clearings(file.module, file):
            if not found.by_optimizer and found.kept is Certainty.YES:
                yield Diagnosis(found.place, Level.INFO, NOTHING, ABOVE)
            elif not is_carried(found, file):
                yield Diagnosis(found.place, Level.MANUAL, KEEPS if found.kept is Certainty.YES else UNSURE, MOVE)
