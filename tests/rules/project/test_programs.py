"""An attribute of a common name is a sharded model's where the file that reads it may run with the one that sets it."""

from __future__ import annotations

import pytest

from tests.rules.test_variants import spoken

TRAINER = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
{extra}
class Trainer:
    def __init__(self, net):
        self.model = FSDP(net)
"""
READER = """
def freeze(encoder):
    encoder.model = encoder.build()
    for p in encoder.model.parameters():
        p.requires_grad = False
    print(encoder.model.head.weight.numel())
"""
MAIN = '\nif __name__ == "__main__":\n    run()\n'
OTHER = "from tools.freezing import freeze\n\ndef run():\n    freeze(object())\n" + MAIN


def said(trainer: str, **files: str) -> bool:
    tree = {f"{name}.py".replace("__", "/"): text for name, text in files.items()}
    return bool(spoken({"tools/trainer.py": trainer, "tools/freezing.py": READER, **tree}, "tools/freezing.py"))


def test_a_file_of_another_program_is_left_alone() -> None:
    assert not said(TRAINER.format(extra="") + MAIN, other=OTHER)


def test_a_test_is_a_program() -> None:
    trainer = TRAINER.format(extra="") + MAIN
    tree = {"tools/trainer.py": trainer, "tests/test_encoder.py": f"{READER}\ndef test_it():\n    freeze(object())\n"}
    assert not spoken(tree, "tests/test_encoder.py")


@pytest.mark.parametrize(
    ("extra", "files"),
    [
        pytest.param("from tools.freezing import freeze\n", {}, id="the trainer imports it"),
        pytest.param(
            "",
            {"program": "from tools import freezing\nfrom tools.trainer import Trainer\n" + MAIN},
            id="both imported",
        ),
        pytest.param(
            "",
            {
                "program": "from tools.parts import freeze\nfrom tools.trainer import Trainer\n" + MAIN,
                "tools__parts": "from tools.freezing import freeze\n",
            },
            id="both imported, one through another",
        ),
        pytest.param("from importlib import import_module\n\nplug = import_module(name)\n", {}, id="loaded by a name"),
    ],
)
def test_a_file_of_the_same_program_may_read_the_model(extra: str, files: dict[str, str]) -> None:
    assert said(TRAINER.format(extra=extra) + MAIN, **files)


def test_what_no_program_imports_is_there_for_any() -> None:
    assert said(TRAINER.format(extra=""))
    assert said(TRAINER.format(extra=""), tests__test_freezing="from tools.freezing import freeze\n")


@pytest.mark.parametrize(
    "loads",
    [
        "cli = LightningCLI(trainer_defaults=options)",
        "model = MODELS.build(cfg)\nMODELS = Registry('models')",
        "model = load_class(path)()",
        "make = dynamic_import(name)",
        "import hydra",
        "config = {'_target_': name}",
    ],
)
def test_ways_to_load_by_name(loads: str) -> None:
    assert said(TRAINER.format(extra="") + MAIN + loads + "\n")


def test_a_name_with_the_word_in_it_loads_nothing() -> None:
    assert not said(TRAINER.format(extra="") + MAIN + "config = {'lora_target_modules': name}\n")


def test_a_program_that_loads_by_name_may_load_a_trainer_of_no_program() -> None:
    loader = "import importlib\n\n\ndef load(name):\n    return importlib.import_module(name)\n"
    assert said(TRAINER.format(extra=""), other=OTHER + loader)
    assert not said(TRAINER.format(extra=""), other=OTHER)
    assert not said(TRAINER.format(extra=""), other=OTHER + "\n\ndef score(net):\n    net.eval()\n")
