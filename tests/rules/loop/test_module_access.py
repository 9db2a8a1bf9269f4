"""FSDP206: the model inside the wrapper."""

from __future__ import annotations

import textwrap

import pytest

from tests.rules.helpers import check_noop, check_rewrites, findings

WRAP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
SHARD = "from torch.distributed.fsdp import fully_shard\n"
DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"


def levels(source: str, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, **others) if found.rule == "FSDP206"]


@pytest.mark.parametrize(
    "source",
    [
        DDP + "model = DDP(model)\nprint(model.module)\n",
        "import model.module\n\nprint(model.module.x)\n",
        "class A:\n    def f(self):\n        self.module = 1\n        return self.module\n",
    ],
)
def test_without_fsdp1_nothing_happens(source: str) -> None:
    check_noop(source)


@pytest.mark.parametrize(
    "use",
    [
        "inner = model.module if hasattr(model, 'module') else model",
        "if hasattr(model, 'module'):\n    model = model.module",
        "inner = model.module if isinstance(model, DDP) else model",
        "if isinstance(model, DDP) and model.module.ready:\n    print(1)",
        "inner = model if not isinstance(model, DDP) else model.module",
        "inner = model if isinstance(model, FSDP) else model.module",
        "if not isinstance(model, (FSDP, DDP)):\n    model = model.module",
    ],
)
def test_guarded_uses_that_stay_right(use: str) -> None:
    assert levels(WRAP + DDP + "model = FSDP(model)\n" + use + "\n") == []


def test_before_the_model_is_wrapped_the_attribute_is_its_own() -> None:
    assert levels(WRAP + "def build(net):\n    print(net.module)\n    net = FSDP(net)\n    return net\n") == []


def test_a_statement_that_only_unwraps_goes() -> None:
    check_rewrites(
        WRAP
        + """
def save(model, path):
    model = FSDP(model)
    model = model.module
    # keep this
    print(model.module.config, path)
""",
        SHARD
        + """
def save(model, path):
    fully_shard(model)
    # keep this
    print(model.config, path)
""",
    )


def test_a_conditional_statement_that_only_unwraps_goes() -> None:
    check_rewrites(
        WRAP
        + """
def unwrap(model):
    if isinstance(model, FSDP):
        model = model.module
    return model

net = FSDP(net)
""",
        SHARD
        + """
def unwrap(model):
    return model

fully_shard(net)
""",
    )


def test_loops_that_strip_wrappers_keep_ending() -> None:
    check_rewrites(
        WRAP
        + DDP
        + """
def unwrap(model):
    while isinstance(model, (DDP, FSDP)):
        model = model.module
    return model

def unwrap_fsdp(model):
    while isinstance(model, FSDP):
        model = model.module
    return model

net = FSDP(net)
""",
        SHARD
        + DDP
        + """
def unwrap(model):
    while isinstance(model, DDP):
        model = model.module
    return model

def unwrap_fsdp(model):
    return model

fully_shard(net)
""",
    )


def test_a_name_that_may_hold_another_wrapper() -> None:
    check_rewrites(
        WRAP
        + DDP
        + """
def build(model, kind):
    model = DDP(model) if kind == "ddp" else FSDP(model)
    return model.module.config
""",
        SHARD
        + DDP
        + """
def build(model, kind):
    model = DDP(model) if kind == "ddp" else fully_shard(model)
    return getattr(model, "module", model).config
""",
    )


@pytest.mark.parametrize("name", ["module", "_fsdp_wrapped_module"])
def test_a_call_around_the_hooks_is_left_for_the_reader(name: str) -> None:
    source = f"model = FSDP(net)\nmodel.forward = model.{name}.__call__\n"
    assert levels(WRAP + source) == ["manual"]


def test_the_private_attribute() -> None:
    check_rewrites(
        WRAP + "\nnet = FSDP(net)\nprint([block._fsdp_wrapped_module.weight for block in (net.layers)])\n",
        SHARD + "\nfully_shard(net)\nprint([block.weight for block in (net.layers)])\n",
    )


def test_the_private_attribute_where_nothing_is_wrapped() -> None:
    assert levels("print(block._fsdp_wrapped_module.weight)\n") == ["manual"]


def test_the_private_attribute_behind_a_test() -> None:
    use = "    print(block._fsdp_wrapped_module.weight)\n"
    assert levels(f"{WRAP}net = FSDP(net)\nif isinstance(block, Kind):\n{use}") == ["manual"]
    assert levels(f'{WRAP}net = FSDP(net)\nif hasattr(block, "_fsdp_wrapped_module"):\n{use}') == []


def test_an_attribute_of_that_name_in_the_project_is_not_guessed_about() -> None:
    source = WRAP + DDP + "class Box:\n    def __init__(self, module):\n        self.module = module\n"
    show = "def show(net):\n    print(net.module.config)\n\nshow(FSDP(net))\nshow(DDP(net))\n"
    assert levels(source + show) == ["manual"]
    assert levels(source + "net = FSDP(net)\nprint(net.module.config)\n") == ["safe"]


def test_assigning_to_it() -> None:
    assert levels(WRAP + "net = FSDP(net)\nnet.module = other\n") == ["manual"]


def test_a_model_that_comes_from_another_file() -> None:
    other = WRAP + "from example import save\n\ndef main(net):\n    net = FSDP(net)\n    save(net)\n"
    assert levels("def save(model):\n    print(model.module)\n", main=other) in (["safe"], ["review"])


def test_a_flag_that_names_another_wrapper() -> None:
    other = WRAP + "class State:\n    def __init__(self, net):\n        self.model = FSDP(net)\n"
    assert (
        levels("def get(state):\n    return state.model.module if state.is_ddp else state.model\n", state=other) == []
    )
    assert (
        levels("def get(state):\n    return state.model.module if state.wrapped else state.model\n", state=other) != []
    )


def test_ddp_in_another_program_does_not_matter_where_the_file_wraps_with_fsdp_alone() -> None:
    before = """
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    def train(model):
        model.module.prepare()

    def main(net):
        model = FSDP(net, use_orig_params=True)
        train(model)
    """
    after = """
    from torch.distributed.fsdp import fully_shard

    def train(model):
        model.prepare()

    def main(net):
        model = fully_shard(net)
        train(model)
    """
    ddp = "class Average:\n    def __init__(self, model):\n        self.module = DistributedDataParallel(model)\n"
    check_rewrites(before, after, other=ddp)
    both = before.replace("train(model)\n    ", "train(model)\n        train(DDP(net))\n    ", 1)
    assert "manual" in {found.level.value for found in findings(textwrap.dedent(both), None, other=ddp)}


ASSIGNED_LATE = {
    "conditional": ("if isinstance(net, FSDP):\n        net = net.module", True),
    "twice": ("net = net.module if isinstance(net, FSDP) else net\n    net = net.module", True),
    "loop": ("while isinstance(net, FSDP):\n        net = net.module", True),
    "given first": ("net = pick()\n    if isinstance(net, FSDP):\n        net = net.module", False),
    "global": ("global net\n    if isinstance(net, FSDP):\n        net = net.module", False),
}


@pytest.mark.parametrize("body", ASSIGNED_LATE)
def test_a_name_that_only_its_unwrapping_makes_local(body: str) -> None:
    """Python raises there before. Without the assignment the function would read the outer name, and run."""
    text, is_left = ASSIGNED_LATE[body]
    source = f"{WRAP}net = FSDP(build())\n\ndef score(x):\n    {text}\n    return net(x)\n"
    assert ("manual" in levels(source)) == is_left


def test_a_name_of_the_function_around_is_no_name_of_its_own() -> None:
    source = f"""{WRAP}
def outer(model):
    net = FSDP(model)

    def inner(x):
        nonlocal net
        if isinstance(net, FSDP):
            net = net.module
        return net(x)
"""
    assert "manual" not in levels(source)


def test_the_private_attribute_that_a_function_gives_itself() -> None:
    """`model` in its place would be given for ever; the class of the test is one of FSDP1's own, or any other."""
    for kind in ("FSDP", "State"):
        source = f"{WRAP}net = FSDP(build())\n\ndef walk(m):\n    if isinstance(m, {kind}):\n"
        assert levels(f"{source}        walk(m._fsdp_wrapped_module)\n") == ["manual"]


@pytest.mark.parametrize(
    ("choice", "level"),
    [("model = FSDP(net)", "safe"), ("model = FSDP(net) if big else DDP(net)", "review")],
)
def test_the_wrapper_that_the_function_has_just_made_is_no_other(choice: str, level: str) -> None:
    source = (
        f"{WRAP}{DDP}\ndef show(net, big):\n    {choice}\n    print(model.module)\n\ndef other(net):\n    DDP(net)\n"
    )
    assert levels(source) == [level]
