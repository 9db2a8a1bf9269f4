"""FSDP304 and FSDP306 where the groups of an optimizer hold objects that get_optimizer_state_dict refuses."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite

OWN = """import torch
from torch.optim import Optimizer


class Own(Optimizer):
    def __init__(self, params, lr=0.1, {argument}):
        {defaults}
"""
SAVE = """import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from own import Own


def save(net, path):
    model = FSDP(net, use_orig_params=True)
    opt = Own(model.parameters())
    state = {call}
    if dist.get_rank() == 0:
        torch.save(state, path)
"""
OBJECTS = [
    ("kept_dtype=torch.bfloat16", "super().__init__(params, dict(lr=lr, kept_dtype=kept_dtype))"),
    ("kept=torch.bfloat16", "super().__init__(params, dict(lr=lr, kept=kept))"),
    ("kept: torch.dtype = None", "super().__init__(params, {'lr': lr, 'kept': kept})"),
    ("place=torch.device('cpu')", "defaults = dict(lr=lr, place=place)\n        super().__init__(params, defaults)"),
    ("eps=1e-8", "super().__init__(params, dict(lr=lr, kept=torch.float32))"),
]


def taken(call: str, argument: str, defaults: str, settings: Settings | None = None) -> Changed | Unchanged:
    own = OWN.format(argument=argument, defaults=defaults)
    result = rewrite(SAVE.format(call=call), settings, own=own)
    assert isinstance(result, Changed | Unchanged)
    return result


@pytest.mark.parametrize(("argument", "defaults"), OBJECTS)
def test_fsdp_compat_takes_the_state(argument: str, defaults: str) -> None:
    result = taken("FSDP.full_optim_state_dict(model, opt)", argument, defaults)
    assert isinstance(result, Changed)
    assert "state = fsdp_compat.optim_state_dict(model, opt, rank0_only=True)" in result.source.decode()


def test_on_every_rank_as_well() -> None:
    result = taken("FSDP.optim_state_dict(model, opt)", *OBJECTS[0])
    assert isinstance(result, Changed)
    assert "fsdp_compat.optim_state_dict(model, opt" in result.source.decode()


def test_without_helpers_it_is_left_by_hand() -> None:
    result = taken("FSDP.full_optim_state_dict(model, opt)", *OBJECTS[0], Settings(helpers="never"))
    assert [one.level.value for one in result.findings if one.rule == "FSDP306"] == ["manual"]


def test_numbers_and_texts_are_taken_natively() -> None:
    result = taken(
        "FSDP.full_optim_state_dict(model, opt)", "eps=1e-8", "super().__init__(params, dict(lr=lr, eps=eps))"
    )
    assert isinstance(result, Changed)
    assert "get_optimizer_state_dict" in result.source.decode()
