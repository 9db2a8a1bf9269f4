"""Each proposal trains as FSDP1 does, bit for bit, and its printed code makes the layout that was worked out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP1
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from fsdp_compat.preflight.present_layout import optimizer_costs, present_layout
from fsdp_compat.preflight.timeline import Timeline
from fsdp_migrate.tune.layout_code import code
from fsdp_migrate.tune.present import present
from fsdp_migrate.tune.proposals import proposals
from fsdp_migrate.tune.replay import replay
from tests.pool import Pool
from tests.sampling import every
from tests.tune.models import MODELS, Block, Counts, Wide, batch, built, loss_of, recorded

STEPS = 5


def fsdp1(name: str) -> Any:
    policy = ModuleWrapPolicy({torch.nn.Linear} if name == "mlp" else {Block, Wide})
    return FSDP1(built(name), auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=True)


def trained(rank: int, model: Any) -> tuple[list[float], Counts]:
    """Losses, and what the last step counts."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        counts = Counts(model)
        with counts:
            loss = loss_of(model, batch(rank, step))
            loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, counts


def recorded_under_fsdp1(rank: int, world_size: int, name: str) -> dict[str, Any]:
    """What ``tune`` records of a program."""
    model = fsdp1(name)
    optimizer = torch.optim.AdamW(model.parameters())
    with Timeline(model) as timeline:
        loss_of(model, batch(rank, 0)).backward()
    return {
        **timeline.as_dict(),
        "layout": present_layout(model, timeline.modules),
        "optimizer": optimizer_costs(optimizer, torch.device("cpu")),
        "device": "cpu",
    }


def all_trained(rank: int, world_size: int, name: str, codes: dict[str, str]) -> dict[str, Any]:
    """Losses under FSDP1, and losses and counts of every code."""
    found: dict[str, Any] = {"FSDP1": trained(rank, fsdp1(name))[0]}
    for layout, text in codes.items():
        namespace = {"model": built(name)}
        exec(text, namespace)
        losses, counts = trained(rank, namespace["model"])
        found[layout] = (losses, dict(counts.counts), dict(counts.moved), counts.gathered, counts.both)
    return found


@pytest.mark.parametrize("name", every(3, MODELS, pytest.mark.long))
def test_every_proposal_trains_as_fsdp1_and_is_what_was_worked_out(pool: Pool, name: str) -> None:
    found = present(pool.run(recorded_under_fsdp1, 2, name)[0])
    offered = proposals(found.model, found.layout, 8)
    assert len(offered) >= 6
    codes = {each.layout.name: code(found.model, each.layout, "cpu") for each in offered}
    for by_rank in pool.run(all_trained, 2, name, codes):
        for each in offered:
            losses, *counted = by_rank[each.layout.name]
            books = replay(found.model, each.layout)
            said = [dict(books.counts), dict(books.moved), books.peaks["gathered"], books.peaks["communicated"]]
            assert counted == said, each.layout.name
            # Sums over two ranks have one order, and others are announced.
            assert (losses == by_rank["FSDP1"]) or each.order, each.layout.name


@pytest.mark.parametrize("name", every(3, MODELS, pytest.mark.long))
def test_a_run_under_fsdp1_shows_the_model_that_a_plain_one_shows(pool: Pool, name: str) -> None:
    plain, found = recorded(name), present(pool.run(recorded_under_fsdp1, 2, name)[0])
    assert found.kind == "FSDP1"
    assert [module.name for module in found.model.modules] == [module.name for module in plain.modules]
    assert {(p.name, p.rows, p.row, p.trained) for p in found.model.parameters} == {
        (p.name, p.rows, p.row, p.trained) for p in plain.parameters
    }
    for each in proposals(found.model, found.layout, 8):
        one, two = replay(found.model, each.layout), replay(plain, each.layout)
        assert (one.counts, one.moved, one.peaks["communicated"]) == (two.counts, two.moved, two.peaks["communicated"])
