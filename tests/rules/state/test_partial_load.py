from __future__ import annotations

import pytest

from tests.rules.helpers import findings

SOURCE = """
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def resume(net, state):
    model = FSDP(net)
    {given}set_model_state_dict(model, state, options=StateDictOptions(strict=False))
    {then}
"""


@pytest.mark.parametrize(
    ("given", "then", "said"),
    [
        ("", "return model", True),
        ("result = ", "return model", True),
        ("result = ", "return result", False),
        ("missing, unexpected = ", "return missing", False),
        ("return ", "", False),
    ],
)
def test_a_load_whose_result_nobody_reads_may_load_nothing(given: str, then: str, said: bool) -> None:
    found = [one for one in findings(SOURCE.format(given=given, then=then)) if one.rule == "FSDP314"]
    assert bool(found) == said
