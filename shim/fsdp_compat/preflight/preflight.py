"""Runs every check in an order in which none can hang."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves

from fsdp_compat.preflight import contents, structure, together
from fsdp_compat.preflight.facts import Facts, look
from fsdp_compat.preflight.report import PreflightReport, Suspicion

Check: TypeAlias = Callable[[Facts], Iterator[Suspicion]]

ALONE: tuple[Check, ...] = (
    structure.few_units,
    structure.mesh_of_one,
    structure.fewer_ranks,
    structure.outside_units,
    structure.untied,
    structure.frozen_with_trained,
    structure.checkpoint_inside_out,
    structure.output_casts,
    structure.adapters_alone,
    structure.root_resharded,
    structure.entry_points,
    structure.class_layout,
    structure.mesh_per_unit,
    structure.several_meshes,
    contents.uninitialised,
    contents.same_layers,
    contents.optimizer_parameters,
    contents.low_master_weights,
    contents.promoting_buffers,
    contents.mixed_dtypes,
    contents.quantised,
    contents.uneven_float8,
)
TOGETHER: tuple[Check, ...] = (together.apart, together.same_data, together.save_and_load)


def preflight(model: nn.Module, optimizer: Optimizer | None = None, *, sample: Any = None) -> PreflightReport:
    """Look at a sharded model and its optimizer before the first step; what is suspicious, with cause and cure.

    Native FSDP2, ``fsdp_compat`` and FSDP1 models. ``sample``: one input of this rank, as a tensor or any nest of
    tensors. A collective: every rank calls it, and every rank gets what any rank found. No number changes: the state
    of the optimizer is as it was. The checks that compare ranks are left out if ranks disagree about the model.
    """
    leaves = tuple(leaf for leaf in tree_leaves(sample) if isinstance(leaf, torch.Tensor))
    facts = look(model, optimizer, leaves)
    found = list(together.other_plans(facts))
    found += [suspicion for check in ALONE for suspicion in check(facts)]
    if not any(suspicion.check == "other-plans" for suspicion in found):
        found += [suspicion for check in TOGETHER for suspicion in check(facts)]
    everyone = together.gathered(found)
    every = dict.fromkeys(suspicion for of_rank in everyone for suspicion in of_rank)
    return PreflightReport(facts.units, tuple(every), facts.world)
