"""Where optimizers take turns, the first difference is the first in time, whatever step of its optimizer it is in."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recorder.arm import recorded
from fsdp_migrate.verify.recorder.orders import Orders
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.report.facts import place
from fsdp_migrate.verify.report.verdict_html import map_of, render

CRITIC_STEPS = 2


def adversarial(out: Path, wrong_at: int | None = None) -> Recording:
    """A critic steps twice, then the generator, whose loss is the critic's. ``wrong_at``: a step of the critic."""
    torch.manual_seed(0)
    generator, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
    ours, theirs = torch.optim.SGD(generator.parameters(), lr=0.1), torch.optim.SGD(critic.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1)
    with recorded(Orders(str(out), 2 * CRITIC_STEPS, stop=False)):
        for step in range(2 * CRITIC_STEPS):
            noise = torch.randn(6, 3, generator=data)
            critic(generator(noise).detach()).mean().backward()
            if step == wrong_at:
                critic[0].weight.grad.mul_(1.5)  # type: ignore[union-attr, operator]
            theirs.step()
            theirs.zero_grad()
            if step % CRITIC_STEPS == 1:
                critic(generator(noise)).mean().neg().backward()
                ours.step()
                ours.zero_grad()
                theirs.zero_grad()
    return read(out)


@pytest.mark.parametrize("wrong_at", [1, 2])
def test_the_first_difference_is_the_first_in_time(tmp_path: Path, wrong_at: int) -> None:
    verdict = verdict_of(adversarial(tmp_path / "before"), adversarial(tmp_path / "after", wrong_at))
    first = verdict.first
    assert first is not None
    assert (first.question, first.optimizer, first.step) == (Question.GRADIENTS, 0, wrong_at)
    # One generator's step has come before the third of the critic.
    assert first.event == wrong_at + (wrong_at > 1)
    assert {found.event for found in verdict.firsts} <= set(range(first.event, 6))


def test_two_optimizers_that_agree_are_equal(tmp_path: Path) -> None:
    assert verdict_of(adversarial(tmp_path / "before"), adversarial(tmp_path / "after")).firsts == ()


def test_the_report_names_models_and_optimizers(tmp_path: Path) -> None:
    verdict = verdict_of(adversarial(tmp_path / "before"), adversarial(tmp_path / "after", 1))
    assert verdict.first is not None
    where = place(verdict, verdict.first)
    assert where == "step 1, optimizer 0 (SGD), gradients, 0.weight of model 1 (Sequential)"
    page = render(verdict)
    assert "mean over ranks, optimizer 0 (SGD)" in page
    assert "mean over ranks, optimizer 1 (SGD)" in page


def test_the_map_has_the_steps_that_were_made(tmp_path: Path) -> None:
    verdict = verdict_of(adversarial(tmp_path / "before"), adversarial(tmp_path / "after", 1))
    found = map_of(verdict)
    assert found is not None
    steps = {name: {cell.x for cell in found.cells if cell.y == row} for row, name in enumerate(found.names)}
    assert steps["weight of model 0 (Linear)"] == {0, 1}
    assert steps["0.weight of model 1 (Sequential)"] == {0, 1, 2, 3}


def resumed(out: Path, *, wrong: float = 1.0, lost: bool = False) -> Recording:
    """A model learns, and another one that is made afterwards goes on from what it has learnt."""
    torch.manual_seed(0)
    data = torch.Generator().manual_seed(1)

    def trained(model: nn.Module, optimizer: torch.optim.Optimizer, factor: float) -> None:
        for _ in range(3):
            model(torch.randn(6, 3, generator=data)).square().mean().backward()
            model.weight.grad.mul_(factor)  # type: ignore[union-attr, operator]
            optimizer.step()
            optimizer.zero_grad()

    with recorded(Orders(str(out), 4, stop=False)):
        first = nn.Linear(3, 2)
        trained(first, torch.optim.SGD(first.parameters(), lr=0.1), wrong)
        second = nn.Linear(3, 2)
        later = torch.optim.SGD(second.parameters(), lr=0.1)
        if not lost:
            second.load_state_dict(first.state_dict())
        trained(second, later, 1.0)
    return read(out)


def test_a_model_that_is_made_after_others_have_stepped_is_found(tmp_path: Path) -> None:
    before = resumed(tmp_path / "before")
    assert sorted(before.optimizers[0].weights) == ["0:bias", "0:weight"]
    assert {"1:bias", "1:weight"} <= set(before.optimizers[1].weights)
    assert verdict_of(before, resumed(tmp_path / "again")).firsts == ()


def test_its_first_weights_differ_when_it_is_made_not_before_all_steps(tmp_path: Path) -> None:
    before = resumed(tmp_path / "before")
    learnt = verdict_of(before, resumed(tmp_path / "learnt", wrong=1.5)).first
    assert learnt is not None
    assert (learnt.question, learnt.optimizer, learnt.step, learnt.event) == (Question.GRADIENTS, 0, 0, 0)
    lost = verdict_of(before, resumed(tmp_path / "lost", lost=True)).first
    assert lost is not None
    assert (lost.question, lost.event) == (Question.INITIAL_WEIGHTS, 3)
