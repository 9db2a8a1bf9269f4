"""FSDP211: copies of a wrapped model."""

from __future__ import annotations

from tests.rules.helpers import check_noop, findings

WRAP = "import copy\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"


def levels(source: str) -> list[str]:
    return [found.level.value for found in findings(source) if found.rule == "FSDP211"]


def test_copies_of_other_things_are_left_alone() -> None:
    check_noop("import copy\n\nconfig = copy.deepcopy(model)\n")


def test_a_copy_made_before_wrapping_is_left_alone() -> None:
    source = (
        "def build(model):\n    average = copy.deepcopy(model)\n    model = FSDP(model)\n    return model, average\n"
    )
    assert levels(WRAP + source) == []


def test_the_inner_module_is_the_sharded_model_too() -> None:
    assert levels(WRAP + "model = FSDP(model)\naverage = copy.deepcopy(model.module)\n") == ["manual"]


def test_averaged_models_copy() -> None:
    source = "from torch.optim.swa_utils import AveragedModel\nmodel = FSDP(model)\naverage = AveragedModel(model)\n"
    assert levels(WRAP + source) == ["manual"]


def test_state_dicts_may_be_copied() -> None:
    assert levels(WRAP + "model = FSDP(model)\nsaved = copy.deepcopy(model.config)\n") == []
