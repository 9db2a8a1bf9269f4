"""Wraps that FSDP1 cannot train with are left for a human, and what a first run writes is a wrap for the second."""

from __future__ import annotations

import pytest

from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import findings, rewrite

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
DROPPED = {
    "a parameter": "def f(net, x):\n    FSDP(net)\n    return net(x)\n",
    "by keyword": "def f(net, x):\n    FSDP(module=net, use_orig_params=True)\n    return net(x)\n",
    "on another device": "def f(net, x):\n    FSDP(net.cuda())\n    return net(x)\n",
    "an attribute": "class T:\n    def f(self):\n        FSDP(self.net, auto_wrap_policy=self.policy)\n",
    "an element": "def f(jobs):\n    FSDP(jobs[0].net)\n    return jobs\n",
    "blocks": "def f(net):\n    for block in net.blocks:\n        FSDP(block)\n    return net\n",
    "under a test": "def f(net, rank):\n    if rank == 0:\n        (FSDP(net))\n    return net\n",
    "a module": "net = Net()\nFSDP(net, sync_module_states=True)\n",
}
KEPT = {
    "assigned": "def f(net):\n    net = FSDP(net)\n    return net\n",
    "returned": "def f(net):\n    return FSDP(net)\n",
    "made for the wrap": "def f():\n    FSDP(Net())\n",
    "made by a module": "def f(models):\n    FSDP(models.Net(3).cuda())\n",
    "a method on it": "def f(net):\n    FSDP(net).train()\n",
    "given away": "def f(net):\n    use(FSDP(net))\n",
}
UNBOUND = {
    "module": "net = Net()\ndef f():\n    net = FSDP(net)\n    return net\n",
    "function": "def g(net):\n    def f():\n        net = FSDP(net)\n        return net\n    return f\n",
    "async": "def g():\n    net = Net()\n    async def f():\n        net = FSDP(module=net)\n    return f\n",
    "annotated": "net = Net()\ndef f():\n    net: Net = FSDP(net)\n    return net\n",
    "import": "from models import net\ndef f():\n    net = FSDP(net)\n    return net\n",
    "twice": "net = Net()\ndef f():\n    net = net.cuda()\n    net = FSDP(net)\n    return net\n",
    "lambda beside it": "net = Net()\ndef f():\n    net = FSDP(net, param_init_fn=lambda module: module.to('cuda'))\n",
    "above": "net = Net()\ndef f():\n    print(lambda: net.clip_grad_norm_(1.0))\n    net = FSDP(net)\n",
}
BOUND = {
    "parameter": "net = Net()\ndef f(net):\n    net = FSDP(net)\n    return net\n",
    "made": "net = Net()\ndef f():\n    net = Net()\n    net = FSDP(net)\n    return net\n",
    "global": "net = Net()\ndef f():\n    global net\n    net = FSDP(net)\n",
    "nonlocal": "def g(net):\n    def f():\n        nonlocal net\n        net = FSDP(net)\n    return f\n",
    "no code outside": "def f():\n    net = FSDP(net)\n    return net\n",
    "class": "net = Net()\nclass T:\n    net = FSDP(net)\n",
    "with": "net = Net()\ndef f():\n    with build() as net:\n        net = FSDP(net)\n    return net\n",
    "match": "net = Net()\ndef f(x):\n    match x:\n        case [net]:\n            net = FSDP(net)\n    return net\n",
    "function of the name": "net = Net()\ndef f():\n    def net(): ...\n    net = FSDP(net)\n    return net\n",
    "import": "net = Net()\ndef f():\n    from models import net\n    net = FSDP(net)\n    return net\n",
    "another name": "net = Net()\ndef f():\n    wrapped = FSDP(net)\n    return wrapped\n",
    "at module level": "net = Net()\nnet = FSDP(net)\n",
}


def manual(source: str) -> list[str]:
    """The messages of level manual about the wrap, of which no byte is changed."""
    result = rewrite(IMPORT + source)
    assert isinstance(result, Changed | Unchanged)
    said = [found.message for found in result.findings if found.rule == "FSDP101" and found.level == "manual"]
    wraps = [line for line in source.splitlines() if "FSDP(" in line]
    after = result.source.decode() if isinstance(result, Changed) else source
    assert not said or all(line in after for line in wraps)
    if isinstance(result, Changed):
        again = rewrite(result.source)
        assert not isinstance(again, Changed) or again.source == result.source
    return said


@pytest.mark.parametrize("source", DROPPED.values(), ids=DROPPED.keys())
def test_a_wrapper_that_is_dropped(source: str) -> None:
    said = manual(source)
    assert len(said) == 1
    assert said[0].startswith("the wrapper is discarded")


@pytest.mark.parametrize("source", KEPT.values(), ids=KEPT.keys())
def test_a_wrapper_that_is_kept(source: str) -> None:
    assert manual(source) == []


@pytest.mark.parametrize("source", UNBOUND.values(), ids=UNBOUND.keys())
def test_a_name_that_the_wrap_alone_makes_local(source: str) -> None:
    said = manual(source)
    assert len(said) == 1
    assert said[0].startswith("this raises")


@pytest.mark.parametrize("source", BOUND.values(), ids=BOUND.keys())
def test_a_name_that_has_a_value_before_the_wrap(source: str) -> None:
    assert manual(source) == []


@pytest.mark.parametrize(
    ("line", "is_sharded"),
    [
        ("net = net.module", True),
        ("net = net.train()", True),
        ("net = prepare(net, device)", True),
        ("net = Net()", False),
        ("net = Net(config.net)", False),
    ],
)
def test_what_a_loop_brings_back_to_a_line_above_the_wrap(line: str, is_sharded: bool) -> None:
    source = (
        f"def f(net):\n    for _ in jobs:\n        {line}\n        net.clip_grad_norm_(1.0)\n        net = FSDP(net)\n"
    )
    said = [found for found in findings(IMPORT + source) if found.rule == "FSDP201"]
    assert bool(said) == is_sharded


@pytest.mark.parametrize("name", ["net", "self.model"])
@pytest.mark.parametrize("use", ["M.clip_grad_norm_(1.0)", "state = M.state_dict()", "M.load_state_dict(state)"])
@pytest.mark.parametrize(
    "policy",
    ["auto_wrap_policy=policy", "auto_wrap_policy=policy, param_init_fn=build", "mixed_precision=bf16", "**kwargs"],
)
def test_what_stands_above_the_units_of_a_wrap_is_left_by_a_second_run_too(name: str, use: str, policy: str) -> None:
    source = f"def f(x):\n    {use}\n    M = FSDP(M, {policy})\n    M.eval()\n\n\ndef g():\n    M = FSDP()\n"
    result = rewrite(IMPORT + source.replace("M", name))
    assert isinstance(result, Changed)
    again = rewrite(result.source)
    assert isinstance(again, Unchanged) or again == Changed(result.source, again.findings)


INNER = {
    "assigned": "def inner(x):\n        make = x\n        return make(x)",
    "global": "def inner(x):\n        global make\n        make = x\n        return make(x)",
    "nonlocal": "def inner(x):\n        nonlocal make\n        make(x)\n        make = x",
    "nonlocal that is not read": "def inner(x):\n        nonlocal make\n        make = x",
    "read": "def inner(x):\n        return make",
    "a default": "def inner(x, y=make):\n        make = y\n        return make",
    "a comprehension": "def inner(x):\n        return [make for make in x]",
    "a class": "class inner:\n        own = make\n        make = 1",
}


@pytest.mark.parametrize("inner", INNER.values(), ids=INNER.keys())
def test_a_partial_whose_name_is_meant_inside_as_well(inner: str) -> None:
    source = "def f(net):\n    make = partial(FSDP, use_orig_params=True)\n    net = make(net)\n"
    result = rewrite("from functools import partial\n" + IMPORT + source + f"    {inner}\n    return inner\n")
    assert isinstance(result, Changed)
    assert b"make = partial(fsdp_compat.shard, use_orig_params=True)" in result.source
    assert b"FSDP" not in result.source


def test_a_partial_whose_name_another_function_has_as_well() -> None:
    source = "def f(net):\n    make = partial(FSDP, use_orig_params=True)\n    return make(net)\n\n\n"
    result = rewrite("from functools import partial\n" + IMPORT + source + source.replace("f(net)", "g(net)", 1))
    assert isinstance(result, Changed)
    assert result.source.count(b"return fully_shard(net)") == 2


@pytest.mark.parametrize("given", ["unknown=1", ""])
@pytest.mark.parametrize("branch", ["", "if fast: "])
def test_no_optimizer_is_moved_or_relinked_for_a_wrap_that_is_left(given: str, branch: str) -> None:
    built = f"import torch\ndef f(net, fast):\n    {branch}opt = torch.optim.SGD(net.parameters())\n"
    source = f"{IMPORT}{built}    net = FSDP(net, {given})\n    return net\n"
    said = [found.level.value for found in findings(source) if found.rule == "FSDP117"]
    assert said == ["manual" if given else "review"]


@pytest.mark.parametrize("policy", ["auto_wrap_policy=policy, param_init_fn=build", "param_init_fn=build", ""])
def test_no_pass_has_run_where_a_model_has_just_been_sharded(policy: str) -> None:
    source = f"net = FSDP(net, {policy})\nnet.zero_grad()\nnet.generate(x)\nnet = FSDP(net, unknown=1)\n"
    result = rewrite(IMPORT + source)
    assert isinstance(result, Changed)
    assert b"reshard" not in result.source
    again = rewrite(result.source)
    assert isinstance(again, Unchanged) or again == Changed(result.source, again.findings)
