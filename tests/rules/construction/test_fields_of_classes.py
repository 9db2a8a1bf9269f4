"""Fields of classes whose strategy becomes a dictionary: what reads them still finds one."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import fields
from types import ModuleType
from unittest import mock

import pytest

from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import rewrite_tree

CONF = """
from dataclasses import dataclass
from torch.distributed.fsdp import ShardingStrategy


@dataclass
class Conf:
    rate: float = 0.1
    strategy: ShardingStrategy = ShardingStrategy.SHARD_GRAD_OP
"""
TRAIN = """
from conf import Conf
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


def build(model, conf):
    model = FSDP(model, sharding_strategy=conf.strategy)
    return model


def main(model):
    return build(model, Conf())
"""
ARGUMENTS = {"reshard_after_forward": False}


def written(conf: str = CONF, train: str = TRAIN) -> str | None:
    """What the file of the class becomes, None where it is left."""
    files = {"conf.py": textwrap.dedent(conf).encode(), "train.py": textwrap.dedent(train).encode()}
    result = rewrite_tree(files)["conf.py"]
    return result.source.decode() if isinstance(result, Changed) else None


def made(text: str | None) -> ModuleType:
    assert text is not None
    module = ModuleType("conf")
    with mock.patch.dict(sys.modules, conf=module):
        exec(text, vars(module))
    return module


def test_objects_of_a_dataclass_have_a_dictionary_each() -> None:
    text = written(CONF.replace("SHARD_GRAD_OP", "FULL_SHARD"))
    assert text is not None and "default_factory=dict)" in text
    conf = made(written()).Conf
    assert conf().strategy == ARGUMENTS and conf().strategy is not conf().strategy


@pytest.mark.parametrize("main", ["build(model, Conf)", "FSDP(model, sharding_strategy=Conf.strategy)"])
def test_a_dataclass_that_is_asked_itself(main: str) -> None:
    module = made(written(train=TRAIN.replace("build(model, Conf())", main)))
    assert module.Conf.strategy == module.Conf().strategy == ARGUMENTS


def test_a_dataclass_behind_a_name_and_a_tuple() -> None:
    train = TRAIN.replace("build(model, Conf())", "build(model, configs[0])") + "\nconfigs = (Conf, None)\n"
    assert made(written(train=train)).Conf.strategy == ARGUMENTS


def test_a_class_without_fields() -> None:
    conf = made(written(CONF.replace("@dataclass\n", ""))).Conf
    assert conf.strategy == conf().strategy == ARGUMENTS


def test_a_variable_of_a_dataclass() -> None:
    conf = CONF.replace(": ShardingStrategy", ": ClassVar[ShardingStrategy]")
    module = made(written(f"from typing import ClassVar\n{conf}"))
    assert module.Conf.strategy == ARGUMENTS and [one.name for one in fields(module.Conf)] == ["rate"]


def test_objects_that_a_library_makes_may_have_any_strategy() -> None:
    assert written(train=TRAIN.replace("Conf()", "HfArgumentParser((Conf,)).parse_args_into_dataclasses()[0]")) is None


def test_a_class_that_is_asked_itself_and_gets_values_in_order() -> None:
    train = TRAIN.replace("Conf()", "Conf")
    assert written(train=f"{train}\nother = Conf(0.2)\n") is None


def test_what_only_looks_at_the_class_reads_no_field() -> None:
    text = written(train=f"{TRAIN}\nassert isinstance(Conf(), Conf)\n")
    assert text is not None and "ClassVar" not in text
