"""Functions and flags that ask for FSDP1's class: where they say no, the model is no sharded one."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite_tree

HEAD = """
try:
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    HAS_FSDP = True
except ImportError:
    HAS_FSDP = False
SWITCH = False
"""
MAIN = """
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel
from states import state_of

def main(args, net):
    model = FSDP(net) if args.shards else DistributedDataParallel(net)
    model(1).sum().backward()
    return state_of(model)
"""
STATE = """
def state_of(model):
    if {test}:
        return model.state_dict()
    return model.state_dict()
"""
ELSE = """
def state_of(model):
    if not ({test}):
        state = model.state_dict()
    else:
        state = model.state_dict()
    return state
"""
FUNCTION = "\ndef shards(module):\n    '''Whether it is sharded.'''\n    return {}\n"


def calls_in(asks: str, test: str, state: str) -> list[str]:
    """How the lines with ``state_dict`` of the output call it."""
    files = {"states.py": HEAD + (FUNCTION.format(asks) if asks else "") + state.format(test=test), "main.py": MAIN}
    result = rewrite_tree({path: text.encode() for path, text in files.items()})["states.py"]
    assert isinstance(result, Changed)
    text = result.source.decode().partition("def state_of")[2]
    return [word for word in ("get_model_state_dict(", "isinstance(model, FSDPModule)\n") if word in text]


@pytest.mark.parametrize("state", [STATE, ELSE])
@pytest.mark.parametrize(
    ("asks", "test"),
    [
        ("isinstance(module, FSDP)", "shards(model)"),
        ("HAS_FSDP and isinstance(module, FSDP)", "shards(model)"),
        ("isinstance(module, FSDP) if HAS_FSDP else False", "shards(model)"),
        ("", "HAS_FSDP and isinstance(model, FSDP)"),
        ("", "isinstance(model, FSDP)"),
    ],
)
def test_a_plain_model_keeps_its_state(asks: str, test: str, state: str) -> None:
    assert calls_in(asks, test, state) == ["get_model_state_dict("]


@pytest.mark.parametrize(
    ("asks", "test"),
    [
        ("SWITCH and isinstance(module, FSDP)", "shards(model)"),
        ("module is not None", "shards(model)"),
        ("", "SWITCH and isinstance(model, FSDP)"),
    ],
)
def test_another_flag_may_be_off_for_a_sharded_model(asks: str, test: str) -> None:
    assert calls_in(asks, test, STATE) == ["get_model_state_dict(", "isinstance(model, FSDPModule)\n"]
