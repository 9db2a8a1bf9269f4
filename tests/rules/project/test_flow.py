"""Which expressions hold a wrapped model: tests around them, lines above the wrapping, and whose attribute it is."""

from __future__ import annotations

import pytest

from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite
from tests.rules.projects import project_of

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
MAIN = WRAP + "from example import save\n\ndef main(net):\n    model = FSDP(net)\n    save(model)\n"


def rules(source: str, **others: str) -> list[str]:
    """The rules that spoke about ``source``, imports left out."""
    return [found.rule for found in findings(source, None, **others) if found.rule != "FSDP100"]


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("args.fsdp", 1),
        ("use_fsdp", 1),
        ("not args.fsdp", 1),
        ("is_fsdp(model)", 1),
        ("isinstance(model, DistributedDataParallel)", 1),
        ("not isinstance(model, DistributedDataParallel)", 1),
        ("args.fsdp_offload", 2),
        ("args.save", 2),
    ],
)
def test_a_switch_decides_in_its_branches(test: str, expected: int) -> None:
    source = f"def save(model):\n    if {test}:\n        model.state_dict()\n    else:\n        model.state_dict()\n"
    assert rules(source, main=MAIN) == ["FSDP309"] * expected


def test_the_test_of_a_wrapper_decides_about_the_module_inside() -> None:
    source = "def save(model):\n    if isinstance(model, Other):\n        model.module.state_dict()\n"
    assert rules(source, main=MAIN) == []


SETUP = WRAP + "\ndef setup(model):\n    return FSDP(model)\n"


def test_a_model_that_another_function_wraps_further_down_is_not_wrapped_yet() -> None:
    source = "def load(model, state):\n    model.load_state_dict(state)\n"
    main = "from example import load\nfrom wrapping import setup\n\ndef main(model, state):\n    {}\n    {}\n"
    first, then = "load(model, state)", "model = setup(model)"
    assert rules(source, wrapping=SETUP, main=main.format(first, then)) == []
    assert rules(source, wrapping=SETUP, main=main.format(then, first)) == ["FSDP309"]


def test_what_was_wrapped_stays_so_until_it_is_compiled() -> None:
    source = "def load(model, state):\n    model.load_state_dict(state)\n"
    body = "model = setup(model)\n    load(model, state)\n    model = fast(model)\n"
    main = f"from example import load\nfrom wrapping import setup\n\ndef main(model, state):\n    {body}"
    assert rules(source, wrapping=SETUP, main=main) == ["FSDP309"]


TRAINER = WRAP + "from example import Plain\n\nclass Sharded{base}:\n    def __init__(self, model):\n"
TRAINER += "        self.model = FSDP(model)\n"
PLAIN = "class Plain{base}:\n    def __init__(self, model):\n        self.model = model\n\n    def save(self):\n"
PLAIN += "        self.model.state_dict()\n"


def test_the_attribute_of_another_class_is_another_one() -> None:
    assert rules(PLAIN.format(base=""), other=TRAINER.format(base="")) == []
    assert rules(PLAIN.format(base="(Base)"), other=TRAINER.format(base="(Base)") + "\nclass Base:\n    pass\n") == []


def test_a_class_shares_its_attributes_with_its_bases_and_subclasses() -> None:
    assert rules(PLAIN.format(base=""), other=TRAINER.format(base="(Plain)")) == ["FSDP309"]
    assert rules("from other import Sharded\n" + PLAIN.format(base="(Sharded)"), other=TRAINER.format(base="")) == [
        "FSDP309"
    ]


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("    def save(self):\n        pass\n", []),
        ("    def save(self):\n        super().save()\n", ["FSDP309"]),
        ("    def save(self):\n        pass\n\n    def step(self):\n        Plain.save(self)\n", ["FSDP309"]),
        ("    def step(self):\n        pass\n", ["FSDP309"]),
    ],
)
def test_a_subclass_with_a_method_of_its_own_does_not_run_that_of_its_base(method: str, expected: list[str]) -> None:
    assert rules(PLAIN.format(base=""), other=f"{TRAINER.format(base='(Plain)')}\n{method}") == expected
    further = f"{TRAINER.format(base='(Between)')}\nclass Between(Plain):\n{method}"
    assert rules(PLAIN.format(base=""), other=further) == expected


@pytest.mark.parametrize(
    ("decorator", "expected"),
    [("@dataclass\n", ["FSDP309"]), ("@dataclasses.dataclass(frozen=True)\n", ["FSDP309"]), ("", [])],
)
@pytest.mark.parametrize("given", ["3, model", "step=3, model=model"])
def test_the_fields_of_a_dataclass_hold_what_its_constructor_is_given(
    decorator: str, given: str, expected: list[str]
) -> None:
    source = f"{decorator}class Trainer:\n    step: int\n    model: object\n\n    def save(self):\n"
    source = "import dataclasses\nfrom dataclasses import dataclass\n\n" + source + "        self.model.state_dict()\n"
    main = f"{WRAP}from example import Trainer\n\ndef main(net):\n    model = FSDP(net)\n    Trainer({given}).save()\n"
    assert rules(source, main=main) == expected


def test_an_attribute_that_is_set_from_outside_may_be_of_any_class() -> None:
    outside = WRAP + "\ndef shard(trainer):\n    trainer.model = FSDP(trainer.model)\n"
    assert rules(PLAIN.format(base=""), other=outside) == ["FSDP309"]


def test_of_several_modules_with_one_name_the_nearest_is_meant() -> None:
    util = "def save(model):\n    model.state_dict()\n"
    files = {
        "a/main.py": WRAP + "from util import save\n\ndef main(net):\n    model = FSDP(net)\n    save(model)\n",
        "a/util.py": util,
        "b/main.py": "from util import save\n\ndef main(net):\n    save(net)\n",
        "b/util.py": util,
    }
    project = project_of(files)
    assert project.named("a/util.py", "save", "model").model is Certainty.YES
    assert project.named("b/util.py", "save", "model").model is Certainty.NO


def test_the_result_of_a_function_that_returns_a_partial_constructor_wraps() -> None:
    factory = WRAP + "from functools import partial\n\ndef get_wrapper(cfg):\n    wrapper = partial(FSDP, **cfg)\n"
    factory += "    return wrapper\n"
    source = "from factory import get_wrapper\n\ndef main(parts, cfg):\n    for name, part in parts.items():\n"
    source += "        parts[name] = {}(part)\n    for part in parts.values():\n        part.state_dict()\n"
    assert rules(source.format("get_wrapper(cfg)"), factory=factory) == ["FSDP309"]
    assert rules(source.format("get_other(cfg)"), factory=factory) == []


def test_what_an_attribute_of_some_object_may_hold_is_followed_through_containers() -> None:
    wraps = WRAP + "import main\n\nclass Trainer:\n    def __init__(self, net):\n        self.model = FSDP(net)\n"
    source = "from copy import deepcopy\n\ndef run(args):\n    return deepcopy(args)\n"
    main = "from example import run\n\ndef start(options):\n    run({})\n"
    assert rules(source, wraps=wraps, main=main.format("[options.model]")) == ["FSDP211"]
    further = "from example import run\n\ndef start(options):\n    given = options.model\n    run([given, options])\n"
    assert rules(source, wraps=wraps, main=further) == ["FSDP211"]


def test_what_a_model_updates_does_not_become_the_model() -> None:
    """``ema.update(model)`` keeps numbers of the model; ``holder.update({...: model})`` keeps the model."""
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(net, average, holder):
            model = FSDP(net)
            average.update(model)
            holder.update({"model": model})
            return average.state_dict(), holder["model"].module
    """
    result = rewrite(source)
    assert isinstance(result, Changed)
    assert b'return average.state_dict(), getattr(holder["model"], "module"' in result.source


def test_what_gives_a_model_back_beside_its_optimizer_is_not_the_wrap() -> None:
    wraps = WRAP + "\ndef wrap_model(args, model):\n    return FSDP(model), args.device\n\n"
    wraps += "def init_training(args, model):\n    return model, args.optimizer(model.parameters())\n"
    source = "from other import init_training, wrap_model\n\n\ndef counted(model):\n    model.state_dict()\n\n\n"
    source += "def main(args, model):\n{}    model, device = wrap_model(args, model)\n{}"
    source += "    model, optimizer = init_training(args, model)\n"
    assert rules(source.format("    counted(model)\n", ""), other=wraps) == []
    assert rules(source.format("", "    counted(model)\n"), other=wraps) == ["FSDP309"]
