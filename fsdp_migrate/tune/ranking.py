"""Proposals by what they cost on a machine, the fastest that fits first."""

from __future__ import annotations

from dataclasses import dataclass

from fsdp_migrate.tune.machine import Machine
from fsdp_migrate.tune.present import Present
from fsdp_migrate.tune.proposals import Proposal, proposals
from fsdp_migrate.tune.schedule import Schedule, fsdp1_schedule, schedule

#: A prediction that is better by less than this is no reason to change anything.
WORTH = 0.02


@dataclass(frozen=True)
class Ranked:
    """A proposal with its schedule, and whether it fits into the memory."""

    proposal: Proposal
    schedule: Schedule
    fits: bool

    @property
    def name(self) -> str:
        """The name of the layout."""
        return self.proposal.layout.name


@dataclass(frozen=True)
class Ranking:
    """``now``: what the program does. ``best``: what it should do, None if nothing fits. ``ranked``: best first.

    ``fsdp1``: what a step costs under FSDP1, where the program uses it.
    """

    now: Ranked
    best: Ranked | None
    ranked: tuple[Ranked, ...]
    fsdp1: Ranked | None = None


def ranking(found: Present, machine: Machine, memory: int) -> Ranking:
    """All proposals, those that fit into ``memory`` bytes by their predicted seconds, then the others by their memory.

    What the program does remains the best where nothing is faster, or smaller if it does not fit, by :data:`WORTH`.
    """
    rows = []
    for proposal in proposals(found.model, found.layout, machine.node, found.kind):
        plan = schedule(found.model, proposal.layout, machine)
        rows.append(Ranked(proposal, plan, plan.memory <= memory))
    now = rows[0]
    order = sorted(rows, key=lambda row: (not row.fits, _cost(row), row.schedule.memory))
    best = order[0] if order[0].fits else None
    if best is not None and now.fits and _cost(now) <= _cost(best) * (1 + WORTH):
        best = now
    return Ranking(now, best, tuple(order), _under_fsdp1(found, machine, memory))


def _under_fsdp1(found: Present, machine: Machine, memory: int) -> Ranked | None:
    if found.fsdp1 is None:
        return None
    model, settings = found.fsdp1
    layout = found.layout.renamed("FSDP1")
    plan = fsdp1_schedule(model, layout, settings, machine)
    return Ranked(Proposal(layout, "the program as it is, before its migration"), plan, plan.memory <= memory)


def calibrated(found: Present, machine: Machine, seconds: float) -> Machine:
    """The machine, computing as fast as it must if the program's step, without its update, takes ``seconds`` now.

    :raises ValueError: communication alone takes longer, so that the machine's links are others.
    """
    low, high = 1e-9, 1e9

    def step(factor: float) -> float:
        return schedule(found.model, found.layout, machine.scaled(factor)).times.step

    if step(high) >= seconds or step(low) <= seconds:
        raise ValueError(f"a step of {seconds:g} seconds contradicts the link and computing speeds of {machine.name}")
    for _ in range(60):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if step(middle) > seconds else (low, middle)
    return machine.scaled(high)


def _cost(row: Ranked) -> float:
    return row.schedule.times.step if row.fits else float(row.schedule.memory)
