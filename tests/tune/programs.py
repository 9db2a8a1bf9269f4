"""Programs of the parity matrix's kind, recorded under FSDP1 and trained under any layout of FSDP2."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from fsdp_compat.preflight.present_layout import optimizer_costs, present_layout
from fsdp_compat.preflight.timeline import Timeline
from fsdp_migrate.tune.layout_code import code
from fsdp_migrate.tune.present import Present
from fsdp_migrate.tune.proposals import proposals
from fsdp_migrate.tune.sharding_layout import InvalidLayout, Layout, Unit, managed
from fsdp_migrate.tune.traced_model import TracedModel
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.programs import Program, program
from tests.parity.specs import FACTORS, Spec, common, specs
from tests.tune.models import Counts

#: Factors that say how a model is built, wrapped and run; what is done with it between steps is not a layout's.
_VARIED = {
    "strategy": ("absent", "FULL_SHARD", "SHARD_GRAD_OP"),
    "spelling": ("literal",),
    "policy": ("none", "transformer", "module", "lambda"),
    "precision": ("none", "fp32"),
    # On the meta device units are initialised one after the other, in an order that is theirs.
    "init": ("eager",),
    "ignored": ("none",),
    "knob": ("none", "limit", "backward_pre", "backward_post"),
    "group": ("none", "process_group_none", "mesh"),
    "kwargs": ("direct",),
    "call": ("rebind", "new_name", "attribute", "function"),
    "clip": ("none",),
    "accumulate": ("none", "plain", "with", "conditional"),
    "checkpointing": ("none", "before"),
    "optimizer": ("sgd", "adamw"),
    "midway": ("none",),
}
COUNT, LAYOUTS = 40, 6


def _shown(spec: Spec) -> bool:
    # SHARD_GRAD_OP keeps parameters between accumulated micro-batches, which is no layout's affair.
    return common(spec) and (spec["strategy"] != "SHARD_GRAD_OP" or spec["accumulate"] in ("none", "plain"))


def chosen() -> list[Program]:
    """Programs in which every pair of the values above stands together where FSDP1 runs it, the first 40 of them."""
    wanted = islice(specs({**FACTORS, **_VARIED}, _shown), COUNT)
    return [program(f"{number:02d}-{spec['model']}", spec) for number, spec in enumerate(wanted)]


def layouts(found: Present, accumulate: str) -> dict[str, Layout]:
    """Six: what ``tune`` proposes and, for models without blocks, every layer as a unit in several ways."""
    model, now = found.model, found.layout
    offered = [each.layout for each in proposals(model, now, 8) if not each.order]
    named = {each.name: each for each in [*offered, *_by_layer(model, now)]}
    of = {name: layout for name, layout in named.items() if _possible(model, layout)}
    chosen = dict(islice(of.items(), LAYOUTS)) if len(offered) >= LAYOUTS else dict(list(of.items())[-LAYOUTS:])
    return {name: replace(each, synchronise_last=accumulate != "plain") for name, each in chosen.items()}


def _by_layer(model: TracedModel, now: Layout) -> Iterator[Layout]:
    owners = [m for m in range(1, len(model.modules)) if any(m in p.places for p in model.parameters)]
    run = [m for m in model.order if m in owners and not model.modules[m].children]
    bare, root = replace(now, units=()), Unit((0,))
    each = tuple(Unit((m,)) for m in run)
    yield replace(bare, name="every layer", units=(*each, root))
    yield replace(bare, name="every layer whole", units=(*(replace(unit, reshard=False) for unit in each), root))
    yield replace(bare, name="resharded root", units=(*each, replace(root, reshard=True)))
    yield replace(bare, name="one ahead", units=(*each, root), forward_prefetch=1, backward_prefetch=2)
    pairs = tuple(Unit(tuple(run[place : place + 2])) for place in range(0, len(run), 2))
    yield replace(bare, name="pairs", units=(*pairs, root))
    yield replace(bare, name="the first half", units=(*each[: len(each) // 2], root))


def _possible(model: TracedModel, layout: Layout) -> bool:
    try:
        managed(model, layout)
    except InvalidLayout:
        return False
    return True


@contextlib.contextmanager
def recording() -> Iterator[None]:
    """Record the first forward and backward of a program under FSDP1, beside what it saves."""
    seen: list[Timeline] = []
    models: list[nn.Module] = []

    def entered(module: nn.Module, args: Any) -> None:
        if not seen and torch.is_grad_enabled():
            seen.append(Timeline(module))
            seen[0].begin(module)
            models.append(module)

    def stepping(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        target = _beside("recorded")
        if seen and not target.exists():
            seen[0].finish()
            values = {
                **seen[0].as_dict(),
                "layout": present_layout(models[0], seen[0].modules),
                "optimizer": optimizer_costs(optimizer, torch.device("cpu")),
                "device": "cpu",
            }
            target.write_bytes(pickle.dumps(values))

    hooks = [nn.modules.module.register_module_forward_pre_hook(entered), register_optimizer_step_pre_hook(stepping)]
    try:
        with fsdp1_on_cpu():
            yield
    finally:
        for hook in hooks:
            hook.remove()


@contextlib.contextmanager
def in_layout() -> Iterator[None]:
    """Shard the program's model as the layout beside its result says, and count the second step."""
    import torch.distributed.fsdp as package

    model, layout = pickle.loads(_beside("layout", rank=False).read_bytes())
    own = package.fully_shard
    steps: list[Counts] = []
    root: list[nn.Module] = []

    def shard(module: Any, **options: Any) -> Any:
        # Units of the rewritten program come before its root.
        if not isinstance(module, list) and sum(1 for _ in module.modules()) == len(model.modules):
            with mock.patch.object(package, "fully_shard", own):
                exec(code(model, layout, "cpu"), {"model": module})
            root.append(module)
        return module

    def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if len(steps) == 1 and not _beside("counted").exists():
            steps[0].__exit__(None, None, None)
            found = steps[0]
            values = (dict(found.counts), dict(found.moved), found.gathered, found.both)
            _beside("counted").write_bytes(pickle.dumps(values))

    def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not steps:
            steps.append(Counts(root[0]))
            steps[0].__enter__()

    hooks = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    try:
        with mock.patch.object(package, "fully_shard", shard):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def _beside(kind: str, *, rank: bool = True) -> Path:
    return Path(f"{sys.argv[1]}.{kind}" + (f".{os.environ['RANK']}" if rank else ""))
