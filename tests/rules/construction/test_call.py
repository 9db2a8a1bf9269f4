"""FSDP101: the call that wraps a model."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.construction._plan.length import MOST_LINES
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net{})\n"


@pytest.mark.parametrize("arguments", ["", ", auto_wrap_policy=policy"])
@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("from bitsandbytes.nn import Linear4bit\n", "4-bit"),
        ("config = BitsAndBytesConfig(load_in_4bit=four_bit)\n", "4-bit"),
        ("config = BitsAndBytesConfig(load_in_8bit=True)\n", ""),
        ("from apex.optimizers import FusedAdam\n", "apex"),
        ("from apex.normalization import FusedRMSNorm\n", ""),
    ],
)
def test_what_only_fsdp1_allows(other: str, told: str, arguments: str) -> None:
    said = [found for found in findings(other + WRAP.format(arguments)) if found.rule == "FSDP101"]
    assert len(said) == (2 if told else 1)
    assert not told or [found.level.value for found in said if told in found.message] == ["review"]
    elsewhere = findings(WRAP.format(arguments), other=other)
    assert len([found for found in elsewhere if found.rule == "FSDP101"]) == 1


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(
    "built",
    [
        "net.head = bnb.nn.Linear4bit(8, 8)\n",
        "net = Sequential(Linear4bit(8, 8))\n",
        "net.w = Params4bit(data)\n",
        "def make():\n    return LinearNF4(8, 8)\nnet = make()\n",
        "class Net(Module):\n    def __init__(self):\n        self.head = bnb.nn.Linear4bit(8, 8)\nnet = Net()\n",
    ],
)
def test_a_model_that_has_4_bit_weights_stays(built: str, to: str) -> None:
    said = [found for found in findings(built + WRAP.format(""), Settings(to=to)) if found.rule == "FSDP101"]
    assert [(found.level.value, "4-bit" in found.message) for found in said] == [("manual", True)]


@pytest.mark.parametrize(
    ("others", "level"),
    [
        ("def run():\n    shard(Sequential(Linear4bit(8, 8)))\n", "manual"),
        ("def run():\n    shard(make())\ndef make():\n    return Linear4bit(8, 8)\n", "manual"),
        ("def run():\n    shard(replace_linear(Net(), Linear4bit))\n", "manual"),
        ("def run():\n    shard(load(load_in_4bit=True))\n", "manual"),
        ("def other():\n    return Linear4bit(8, 8)\ndef run():\n    shard(Net())\n", "review"),
        ("def run(net):\n    if isinstance(net, Linear4bit):\n        shard(net)\n", "review"),
    ],
)
def test_4_bit_weights_count_where_the_wrapped_model_gets_them(others: str, level: str) -> None:
    source = WRAP.format("").replace("model = FSDP(net)", "def shard(net):\n    return FSDP(net)") + others
    said = [found.level.value for found in findings(source) if found.rule == "FSDP101" and "4-bit" in found.message]
    assert said == [level]


def test_the_loop_of_a_model_with_4_bit_weights_keeps_fsdp1() -> None:
    wraps = "from bitsandbytes.nn import Linear4bit\n" + WRAP.format("").replace("FSDP(net)", "FSDP(Linear4bit(8, 8))")
    source = wraps.replace("model =", "# TODO(fsdp-migrate FSDP101): {todo}\nmodel =").format(
        todo="this model has 4-bit weights, which neither fully_shard nor fsdp_compat can shard"
    )
    loop = "with model.no_sync():\n    loss(model).backward()\nmodel.clip_grad_norm_(1.0)\nstate = model.state_dict()\n"
    result = rewrite(wraps + loop)
    assert isinstance(result, Changed)
    assert result.source.decode() == source + loop
    kept = [found for found in result.findings if "keeps FSDP1 because it has 4-bit weights" in found.message]
    assert {found.rule for found in kept} >= {"FSDP201", "FSDP202"}
    assert {found.level.value for found in kept} == {"info"}
    again = rewrite(result.source)
    assert not isinstance(again, Changed)


@pytest.mark.parametrize("after", [".to(args.device)", ".eval()", ".to(args.device).train()"])
def test_methods_of_the_result_are_kept(after: str) -> None:
    source = WRAP.format(", sync_module_states=True").rstrip() + f"{after}\n"
    result = rewrite(source)
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert f"model = fully_shard(net){after}" in text and "fsdp_compat" not in text


HEAD = """import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

low = MixedPrecision(reduce_dtype=torch.float16)

"""
LOOP = """for module in reversed(list({0}.modules())):
        if isinstance(module, Block) and module is not {0}:
            fully_shard(module)
"""
BOTH = LOOP.format("a") + "    " + LOOP.format("b")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a, b = FSDP(a, P), FSDP(b, P)", f"{BOTH}    a, b = fully_shard(a), fully_shard(b)"),
        ("return {'a': FSDP(a, P), 'b': FSDP(b, P)}", f"{BOTH}    return {{'a': fully_shard(a), 'b': fully_shard(b)}}"),
        ("model = self.net = FSDP(a, P)", f"{LOOP.format('a')}    model = self.net = fully_shard(a)"),
        ("self.add_module(b, FSDP(a, P))", f"{LOOP.format('a')}    self.add_module(b, fully_shard(a))"),
        ("model = hold(FSDP(a, P).to(b), 2)", f"{LOOP.format('a')}    model = hold(fully_shard(a).to(b), 2)"),
        ("a, b = FSDP(a, mixed_precision=low, P), FSDP(b, P)", "    a, b = a, fully_shard(b)"),
        ("models = [FSDP(one, P) for one in a]", ""),
        ("model = hold(draw(), FSDP(a, P))", ""),
        ("return {'a': FSDP(draw(), P), 'b': FSDP(b, P)}", ""),
        ("model = a if b else FSDP(a, P)", ""),
        ("model = hold(lambda: FSDP(a, P))", ""),
    ],
)
def test_units_of_a_model_that_is_wrapped_in_an_expression_are_sharded_above_it(before: str, after: str) -> None:
    body = before.replace("P)", "auto_wrap_policy=ModuleWrapPolicy({Block}))")
    source = f"{HEAD}def build(self, a, b):\n    {body}\n"
    result = rewrite(source)
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert after in text and ("fsdp_compat" in text) is not bool(after)


def test_a_library_that_may_bring_batch_norm() -> None:
    mixed = ", mixed_precision=MixedPrecision(param_dtype=torch.bfloat16)"
    head = "import other\nimport torch\nfrom torch.distributed.fsdp import MixedPrecision\n"
    told = {
        other: [
            found.level.value
            for found in findings(head + WRAP.format(mixed), other=other)
            if "BatchNorm" in found.message
        ]
        for other in ("import torchvision\n", "import transformers\n")
    }
    assert told == {"import torchvision\n": ["review"], "import transformers\n": []}


def test_arguments_of_the_helper_are_said_to_be_passed_to_it() -> None:
    arguments = (
        ", auto_wrap_policy=functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})"
        ", device_id=torch.cuda.current_device(), sync_module_states=True, cpu_offload=CPUOffload(offload_params=True)"
        ", forward_prefetch=True, sharding_strategy=choose(name)"
    )
    imports = (
        "import functools\nimport torch\nfrom torch.distributed.fsdp import CPUOffload\n"
        "from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy\n"
    )
    said = {found.rule: found for found in findings(imports + WRAP.format(arguments))}
    passed = "is passed to fsdp_compat.shard"
    assert {rule: found.message for rule, found in said.items() if rule not in ("FSDP100", "FSDP101")} == {
        "FSDP102": "fsdp_compat.shard resolves the strategy at run time",
        "FSDP103": f"auto_wrap_policy {passed}",
        "FSDP105": f'cpu_offload {passed}, assuming the process group has a CPU backend too ("cuda:nccl,cpu:gloo")',
        "FSDP106": f"device_id {passed}",
        "FSDP110": f"module {passed}",
        "FSDP113": f"forward_prefetch {passed}",
        "FSDP114": f"sync_module_states {passed}",
    }


def test_the_advice_about_unused_parameters_is_one_that_can_be_followed() -> None:
    source = """
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

        def build(net):
            return [FSDP(one) for one in net]
        """
    for release, advised in (((2, 6), "--torch 2.13"), ((2, 13), "assign this model to a name")):
        (found,) = (entry for entry in findings(source, Settings(torch=release)) if entry.rule == "FSDP121")
        assert advised in found.advice


TWICE = "wraps this model already, and fully_shard accepts a module only once"


@pytest.mark.parametrize(
    ("source", "twice"),
    [
        ("model = FSDP(FSDP(net))\n", 1),
        ("net = FSDP(net)\nmodel = FSDP(net)\n", 1),
        ("net = FSDP(net)\nnet = FSDP(net, use_orig_params=True)\n", 1),
        ("def build(self):\n    self.net = FSDP(self.net)\n    self.net = FSDP(self.net)\n", 1),
        ("net = FSDP(net)\nif late:\n    net = FSDP(net)\n", 1),
        ("if early:\n    net = FSDP(net)\nelse:\n    net = FSDP(net)\n", 0),
        ("net = FSDP(net)\nnet = build()\nnet = FSDP(net)\n", 0),
        ("net = FSDP(net)\nfor net in nets:\n    net = FSDP(net)\n", 0),
        ("net.head = FSDP(net.head)\nnet = FSDP(net)\n", 0),
    ],
)
def test_a_second_wrap_of_one_model_needs_the_helper(source: str, twice: int) -> None:
    head = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
    said = [found for found in findings(head + source) if TWICE in found.message]
    assert [found.level.value for found in said] == ["review"] * twice


def test_more_lines_than_a_maintainer_wants_to_own_are_the_work_of_the_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the call became, and the functions that it needs, count together."""
    source = """
        import torch
        from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy

        with torch.device("meta"):
            net = Net()
        net = FSDP(
            net,
            auto_wrap_policy=ModuleWrapPolicy({Block}),
            mixed_precision=MixedPrecision(param_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16),
            device_id=0,
        )
    """
    before, native = textwrap.dedent(source).strip(), rewrite(source)
    assert isinstance(native, Changed)
    after = [line for line in native.source.decode().splitlines() if line.strip() and "import" not in line]
    kept = [line for line in before.splitlines() if line.strip() and "import" not in line]
    new = len(after) - len(kept)
    assert b"fsdp_compat" not in native.source and 10 < new <= MOST_LINES
    for most, is_native in ((new, True), (new - 1, False)):
        monkeypatch.setattr("fsdp_rules.construction._plan.length.MOST_LINES", most)
        result = rewrite(source)
        assert isinstance(result, Changed) and (b"fsdp_compat.shard(" not in result.source) is is_native
    said = [found.message for found in findings(source) if found.rule == "FSDP101"]
    assert any(f"more than {MOST_LINES} new lines" in message for message in said)
