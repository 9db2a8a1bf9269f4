"""Methods that are called by the name of another one's: what takes a text is not given the model."""

from __future__ import annotations

import ast

import pytest

from fsdp_rules.project.plain_parameters import plain_parameters
from tests.rules.helpers import findings

TRAINER = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from example import Logger

class Trainer:
    def __init__(self, net, logger, average):
        self.model = FSDP(net, use_orig_params=True)
        self.logger, self.average = logger, average

    def validate(self, batch):
        self.model(batch)
        self.average.{method}(self.model)
        self.logger.{method}({given})
"""
LOGGER = """
class Logger:
    def {method}(self, {parameter}, size=1):
        if {use}:
            self.update_curves({name}, size)

    def save(self, is_fsdp=False):
        pass
"""


def about(parameter: str, use: str, method: str = "update", given: str = "'train'") -> list[tuple[str, str]]:
    name = parameter.partition(":")[0].partition("=")[0].strip()
    source = LOGGER.format(method=method, parameter=parameter, use=use, name=name)
    found = findings(source, trainer=TRAINER.format(method=method, given=given))
    return [(one.rule, one.level.value) for one in found]


@pytest.mark.parametrize(
    ("parameter", "use"),
    [
        ("phase", "phase == 'train'"),
        ("split: str", "size"),
        ("tag='train'", "size"),
        ("mode", "mode in ('train', 'validation')"),
        ("prefix", "self.log(f'{prefix}/loss')"),
        ("path: 'str | None'", "size"),
        ("stage", "stage.startswith('val')"),
        ("kind", "self.curves[kind]"),
        ("step: int", "size"),
    ],
)
def test_a_parameter_that_is_a_text_or_a_number_is_no_model_by_the_name_of_its_method(parameter: str, use: str) -> None:
    assert about(parameter, use) == []
    assert about(parameter, use, method="record") == []


def test_what_the_name_of_a_method_says_alone_is_an_assumption() -> None:
    assert about("thing", "size") == [("FSDP220", "review")]
    assert about("subject", "self.ready(size)", method="observe") == [("FSDP220", "review")]


@pytest.mark.parametrize(
    "source",
    [
        "def f(model): print(f'model: {model}')",
        "def f(model=None): return model is None",
        "def f(model: nn.Module | str): pass",
        "def f(model):\n    model = name(model)\n    return model == 'a'",
        "def f(models: list[Module]): pass",
    ],
)
def test_what_may_be_a_module_is_none_of_them(source: str) -> None:
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    assert plain_parameters(function) == frozenset()
