"""FSDP211: copies of a wrapped model."""

from __future__ import annotations

import textwrap

import pytest

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


def test_what_a_function_gives_is_copied() -> None:
    unwrap = "def unwrap(model):\n    return model.module if hasattr(model, 'module') else model\n"
    source = f"import copy\n{unwrap}\ndef average(model):\n    return copy.deepcopy(unwrap(model))\n"
    main = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\nfrom example import average\n"
    main += "def main(net):\n    net = FSDP(net)\n    return average(net)\n"
    found = [one.level.value for one in findings(source, main=main) if one.rule == "FSDP211"]
    assert found == ["manual"]
    others = source.replace("unwrap(model))", "config(model))") + "def config(model):\n    return {'layers': 2}\n"
    assert [one.rule for one in findings(others, main=main) if one.rule == "FSDP211"] == []


def test_state_dicts_may_be_copied() -> None:
    assert levels(WRAP + "model = FSDP(model)\nsaved = copy.deepcopy(model.config)\n") == []


MAYBE = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def run(net, flag):
        return use(FSDP(net) if flag else net)
"""
READS = {
    "an element of an element": "if thing['body'][0] is not None:\n        return copied",
    "arithmetic": "size = thing['height'] * 2\n    return copied",
}


@pytest.mark.parametrize("reads", READS)
def test_a_dictionary_of_numbers_is_no_model(reads: str) -> None:
    source = "from copy import deepcopy\n\ndef use(thing):\n    copied = deepcopy(thing)\n    {}\n"
    main = "from example import use\n" + textwrap.dedent(MAYBE)
    assert [one.rule for one in findings(source.format(READS[reads]), main=main) if one.rule == "FSDP211"] == []
    for line in ("return copied", "return thing['net'](copied)", "thing['net'].parameters()", "return thing[0][1]"):
        assert [one.rule for one in findings(source.format(line), main=main) if one.rule == "FSDP211"] == ["FSDP211"]
