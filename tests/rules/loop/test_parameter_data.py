"""FSDP217: the assignment to ``data`` of a sharded parameter."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"


def found(source: str, **others: str) -> list[tuple[int, str, str]]:
    return [
        (entry.line, entry.level.value, "if" if entry.message.startswith("if ") else "sure")
        for entry in findings(source, **others)
        if entry.rule == "FSDP217"
    ]


@pytest.mark.parametrize(
    "body",
    [
        "    for p in model.parameters():\n        p.data = p.data.half()\n",
        "    for name, p in list(model.named_parameters()):\n        p.data = states[name]\n",
        "    if states:\n        model.head.weight.data = states['head']\n",
    ],
)
def test_a_wrapped_model(body: str) -> None:
    assert found(f"{HEAD}def load(model, states):\n    model = FSDP(model)\n{body}") == [(7, "manual", "sure")]


@pytest.mark.parametrize(
    "body",
    [
        "    for p in model.parameters():\n        p.data = p.data.half()\n    model = FSDP(model)\n",
        "    model = FSDP(model)\n    for p in model.parameters():\n        p.data.mul_(2)\n",
        "    model = FSDP(model)\n    for p in teacher.parameters():\n        p.data = p.data.half()\n",
        "    model = FSDP(model)\n    batch.data = 1\n",
        "    model = FSDP(model)\n    with FSDP.summon_full_params(model, writeback=False):\n"
        "        for p in model.parameters():\n            p.data = p.data.half()\n",
        "    model = FSDP(model)\n    with FSDP.summon_full_params(model):\n"
        "        for p in model.parameters():\n            p.data = p.data.mul_(2)\n",
        "    model = FSDP(model)\n    with FSDP.summon_full_params(model, with_grads=True):\n"
        "        for p in model.parameters():\n            p.grad.data = p.grad.data * 2\n",
    ],
)
def test_what_works_as_before(body: str) -> None:
    assert found(f"{HEAD}def load(model, teacher, batch):\n{body}") == []


@pytest.mark.parametrize(
    ("line", "level"),
    [
        ("p.data = p.data.mul_(rate).clamp_(-1, 1)", None),
        ("values = p.data\n        values.add_(rate)\n        p.data = values", None),
        ("p.grad.data = p.grad.data.div_(rate)", None),
        ("model.head.weight.data = model.head.weight.add_(rate)", None),
        ("values = p.data\n" + "        values = values.mul_(rate)\n" * 1200 + "        p.data = values", None),
        ("p.data = p.data.mul(rate)", "manual"),
        ("p.data = p.data.half().mul_(rate)", "manual"),
        ("p.data = other.data.mul_(rate)", "manual"),
        ("model.head.weight.data = model.tail.weight.add_(rate)", "manual"),
    ],
)
def test_data_that_is_changed_in_place_and_assigned_to_itself(line: str, level: str | None) -> None:
    head = f"{HEAD}def decay(model, rate, other):\n    model = FSDP(model)\n    for p in model.parameters():\n        "
    assert [said for _, said, _ in found(f"{head}{line}\n")] == ([] if level is None else [level])


def test_a_model_from_elsewhere() -> None:
    body = "def cast(model):\n    for p in model.parameters():\n        p.data = p.data.half()\n"
    main = f"{HEAD}from example import cast\n\nmodel = FSDP(model)\ncast(model)\n"
    assert found(body) == []
    ((line, level, _),) = found(body, main=main)
    assert (line, level) == (3, "manual")


def test_a_function_that_shards_with_fsdp2_itself() -> None:
    body = "def cast(self):\n    for p in self.model.parameters():\n        p.data = p.data.half()\n"
    main = f"{HEAD}class A:\n    def __init__(self, model):\n        self.model = FSDP(model)\n"
    assert [certainty for _, _, certainty in found(body, main=main)] == ["if"]
    assert found(f"{body}    fully_shard(self.model)\n", main=main) == []


NOISE = {
    "p.add_(torch.randn(p.shape), alpha=0.1)": True,
    "p += 0.1 * torch.randn(p.size(), device=p.device)": True,
    "noise = torch.rand(p.shape).to(p.device)\n        p.data.sub_(noise)": True,
    "p.lerp_(torch.zeros(p.shape), 0.5)": True,
    "p.add_(torch.zeros_like(p))": False,
    "p.mul_(torch.tensor(0.9))": False,
    "p.mul_(rate)": False,
    "x = torch.randn(4)\n        x.add_(torch.randn(4))": False,
    "p.full_tensor().add_(torch.randn(p.shape))": False,
}


@pytest.mark.parametrize(("line", "raises"), NOISE.items())
def test_a_plain_tensor_that_meets_a_parameter(line: str, raises: bool) -> None:
    body = f"    for p in model.parameters():\n        {line}\n"
    expected = [(8 + line.count("\n"), "manual", "sure")] if raises else []
    assert found(f"import torch\n{HEAD}def jitter(model, rate):\n    model = FSDP(model)\n{body}") == expected
    main = f"{HEAD}from example import jitter\n\njitter(FSDP(model), 1)\n"
    assert bool(found(f"import torch\n\n\ndef jitter(model, rate):\n{body}", main=main)) == raises
    assert found(f"import torch\n\n\ndef jitter(model, rate):\n{body}") == []


STATES = {
    "other.load_state_dict(dict(model.named_parameters()))": True,
    "other.load_state_dict({n: p.detach().cpu().clone() for n, p in model.named_parameters()}, strict=False)": True,
    "d = {}\n    for n, p in model.named_parameters():\n        d[n] = p.data\n    other.load_state_dict(d)": True,
    "other.load_state_dict({n: p.full_tensor() for n, p in model.named_parameters()})": False,
    "other.load_state_dict({n: p.requires_grad for n, p in model.named_parameters()})": False,
    "other.load_state_dict(dict(third.named_parameters()))": False,
    "model.load_state_dict(dict(model.named_parameters()))": False,
    "with FSDP.summon_full_params(model):\n        other.load_state_dict(dict(model.named_parameters()))": False,
}


@pytest.mark.parametrize(("line", "raises"), STATES.items())
def test_sharded_parameters_that_a_plain_model_loads(line: str, raises: bool) -> None:
    source = f"{HEAD}def sync(model, other, third):\n    model = FSDP(model)\n    {line}\n"
    assert [sure for _, level, sure in found(source) if level == "manual"] == (["sure"] if raises else [])


@pytest.mark.parametrize(
    "line",
    ["average = Average(model.parameters())", "average = torch.optim.SGD(model.parameters(), lr=0.1)"],
)
def test_an_object_that_loads_parameters_into_no_model(line: str) -> None:
    own = (
        "class Average:\n    def __init__(self, held):\n        self.held = [p.clone() for p in held]\n\n"
        "    def load_state_dict(self, state):\n        self.held = state['held']\n\n\n"
    )
    use = "average.load_state_dict({'held': list(model.parameters())})"
    assert found(f"import torch\n{HEAD}{own}def main(model):\n    model = FSDP(model)\n    {line}\n    {use}\n") == []


@pytest.mark.parametrize(
    ("line", "is_reported"),
    [
        ("for p in model.parameters(): p.grad.data = p.grad.data * 2", True),
        ("for n, p in model.head.named_parameters(): p.grad.data = torch.clamp(p.grad.data, -1, 1)", True),
        ("model.head.weight.grad.data = model.head.weight.grad * 2", True),
        ("for p in model.parameters(): setattr(p.grad, 'data', 2 * p.grad)", True),
        ("for p in model.parameters(): p.grad = p.grad * 2", False),
        ("for p in model.parameters(): p.grad.data.mul_(2)", False),
        ("for p in other.parameters(): p.grad.data = p.grad.data * 2", False),
    ],
)
def test_the_data_of_a_gradient_takes_no_assignment(line: str, is_reported: bool) -> None:
    source = (
        "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        "def run(net, other, batch):\n    model = FSDP(net, use_orig_params=True)\n    model(batch).backward()\n"
        f"    {line}\n"
    )
    found = [one.message for one in findings(source) if one.rule == "FSDP217"]
    assert found == (["assigning to .data of a sharded FSDP2 gradient silently changes nothing"] if is_reported else [])


OWN = (
    "import torch\n{imports}\n\nclass SAM({base}):\n{init}"
    "    def step(self):\n        for group in self.param_groups:\n            for p in group['params']:\n"
    "                p.data = self.state[p]['old_p']\n"
)
INIT = "    def __init__(self, params, inner):\n        {call}\n"
GIVEN = {
    "super": ("torch.optim.Optimizer", INIT.format(call="super().__init__(params, dict(rho=1))")),
    "super of two": ("torch.optim.Optimizer", INIT.format(call="super(SAM, self).__init__(params, defaults={})")),
    "by its base": ("torch.optim.SGD", INIT.format(call="torch.optim.SGD.__init__(self, params, lr=1)")),
    "no own": ("torch.optim.AdamW", ""),
    "an inner one": (
        "torch.optim.Optimizer",
        INIT.format(
            call="super().__init__(params, {})\n        self.inner = inner(self.param_groups, lr=1.0)\n"
            "        self.param_groups = self.inner.param_groups"
        ),
    ),
    "a plain class": ("object", INIT.format(call="self.param_groups = torch.optim.SGD(params).param_groups")),
}


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(("base", "init"), GIVEN.values(), ids=GIVEN)
def test_the_groups_of_an_own_optimizer(base: str, init: str, to: str) -> None:
    own = OWN.format(imports="", base=base, init=init)
    main = f"{HEAD}from example import SAM\n\nmodel = FSDP(model)\nopt = SAM(model.parameters(), torch.optim.SGD)\n"
    (entry,) = (one for one in findings(own, Settings(to=to), main=main) if one.rule == "FSDP217")
    assert (entry.line, entry.level.value) == (own.count("\n"), "manual")
    plain = f"{HEAD}from example import SAM\n\nmodel = FSDP(model)\nopt = SAM(other.parameters(), torch.optim.SGD)\n"
    assert found(own, main=plain) == []


@pytest.mark.parametrize(
    "body",
    [
        "        for p in model.parameters():\n            p.data = p.data.half()\n",
        "        for layer in model.layers:\n            layer.weight = torch.nn.Parameter(layer.weight * 2)\n",
        "        for layer in model.module.layers:\n            layer.weight = 2 * layer.weight\n",
    ],
)
def test_what_fsdp1_drops_with_the_gathered_parameters(body: str) -> None:
    source = f"{HEAD}def load(model):\n    model = FSDP(model)\n    with FSDP.summon_full_params(model):\n{body}"
    (finding,) = [one for one in findings(source) if one.rule == "FSDP217"]
    assert "FSDP1 drops this when summon_full_params ends" in finding.message
