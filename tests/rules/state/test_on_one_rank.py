"""FSDP309 where rank 0 alone takes the state of a sharded model."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

HEAD = "import torch.distributed as dist\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
BUILT = f"{HEAD}from example import save\n\nmodel = FSDP(net)\nmodel(batch).sum().backward()\n"
SAVE = "def save(model):\n    inner = model.module\n    return inner.state_dict()\n"


def levels(source: str, **others: str) -> list[str]:
    return [one.level.value for one in findings(source, **others) if one.rule == "FSDP309"]


@pytest.mark.parametrize(
    "calls",
    [
        "if dist.get_rank() == 0:\n    save(model)\n",
        "rank = dist.get_rank()\nif rank == 0 and True:\n    print(save(model))\n",
        "def finish():\n    if dist.get_rank() != 0:\n        return\n    save(model)\n\n\nfinish()\n",
        "def finish():\n    save(model)\n\n\nif is_main_process():\n    finish()\n",
    ],
)
def test_a_state_that_one_rank_takes_is_left(calls: str) -> None:
    assert levels(SAVE, main=BUILT + calls) == ["manual"]


@pytest.mark.parametrize("test", ["rank == 0", "dist.get_rank() == 0"])
def test_so_is_one_right_behind_the_test(test: str) -> None:
    body = f"def run(net, rank):\n    model = FSDP(net)\n    if {test}:\n        print(model.module.state_dict())\n"
    assert levels(HEAD + body) == ["manual"]


@pytest.mark.parametrize(
    "calls",
    [
        "save(model)\n",
        "if dist.get_rank() == 0:\n    save(model)\nelse:\n    save(model)\n",
        "if lora_rank > 0:\n    save(model)\n",
        "if dist.get_rank() == 0 or sharded:\n    save(model)\n",
        "state = save(model)\nif dist.get_rank() == 0:\n    print(state)\n",
        "hooks = [save]\nif dist.get_rank() == 0:\n    save(model)\n",
    ],
)
def test_a_state_that_all_ranks_take_is_rewritten(calls: str) -> None:
    assert "manual" not in levels(SAVE, main=BUILT + calls)
