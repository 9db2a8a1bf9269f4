"""FSDP313: states that FSDP1's own functions return of a fresh optimizer, as what a load is to fill."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

SOURCE = """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType

def resume(net, path):
    model = FSDP(net)
    optimizer = torch.optim.AdamW(model.parameters())
    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        {made}
        {filled}
        optimizer.load_state_dict(FSDP.optim_state_dict_to_load(model, optimizer, state["optim"]))
"""
MADE = {
    "in a literal": 'state = {"optim": FSDP.optim_state_dict(model, optimizer)}',
    "by a name": 'held = FSDP.optim_state_dict(model, optimizer); state = {"optim": held}',
    "as an item": 'state = {}; state["optim"] = FSDP.optim_state_dict(model, optimizer)',
    "of a function": "state = {'optim': (lambda m, o: FSDP.optim_state_dict(m, o))(model, optimizer)}",
    "by the old name": 'state = {"optim": FSDP.sharded_optim_state_dict(model, optimizer)}',
}


@pytest.mark.parametrize(("to", "level"), [("native", "manual"), ("shim", "review")])
@pytest.mark.parametrize("made", MADE.values(), ids=MADE)
def test_what_a_load_fills_is_empty_under_fsdp1(made: str, to: str, level: str) -> None:
    source = SOURCE.format(made=made, filled="dcp.load(state, checkpoint_id=path)")
    found = [one for one in findings(source, Settings(to=to)) if one.rule == "FSDP313"]
    assert [one.level.value for one in found] == [level]
    assert "state of a fresh optimizer is empty" in found[0].message


def test_what_is_saved_is_not_empty() -> None:
    source = SOURCE.format(made=MADE["in a literal"], filled="dcp.save(state, checkpoint_id=path)")
    assert "FSDP313" not in [one.rule for one in findings(source)]


PROGRAM = (
    SOURCE.format(made=MADE["in a literal"], filled="dcp.load(state, checkpoint_id=path)").replace(
        "def resume(net, path):\n    model = FSDP(net)\n    optimizer = torch.optim.AdamW(model.parameters())\n",
        "def resume(model, optimizer, path):\n",
    )
    + """

def build():
    model = FSDP(torch.nn.Linear(4, 4))
    return model, torch.optim.AdamW(model.parameters())

def steps(model, optimizer, batches):
    for batch in batches:
        model(batch).sum().backward()
        optimizer.step()

def main(batches, path):
    model, optimizer = build()
    BODY

main([], "here")
"""
)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("resume(model, optimizer, path); steps(model, optimizer, batches)", ["manual"]),
        ("steps(model, optimizer, batches); resume(model, optimizer, path)", []),
        ("steps(model, optimizer, batches); model, optimizer = build(); resume(model, optimizer, path)", ["manual"]),
        ("other = build(); steps(*other, batches); resume(model, optimizer, path)", ["review"]),
    ],
)
def test_the_state_of_an_optimizer_that_has_stepped_is_not_empty(body: str, told: list[str]) -> None:
    found = [one for one in findings(PROGRAM.replace("BODY", body)) if one.rule == "FSDP313"]
    assert [one.level.value for one in found] == told
