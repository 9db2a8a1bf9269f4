"""FSDP209: communication hooks."""

from __future__ import annotations

from tests.rules.helpers import check_noop, findings

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(source) if found.rule == "FSDP209"]


def test_another_wrapper_has_hooks_of_its_own() -> None:
    check_noop("from torch.nn.parallel import DistributedDataParallel\n\nmodel.register_comm_hook(None, hook)\n")


def test_a_model_wrapped_by_something_else_in_the_same_project() -> None:
    source = WRAP + "from torch.nn.parallel import DistributedDataParallel as DDP\nmodel = FSDP(model)\n"
    assert levels(source + "other = DDP(net)\nother.register_comm_hook(None, hook)\n") == []


def test_an_attribute_that_holds_the_model() -> None:
    source = WRAP + "class Trainer:\n    def __init__(self, model):\n        self.model = FSDP(model)\n"
    assert levels(source + "        self.model.register_comm_hook(state=None, hook=hook)\n") == ["manual"]
