"""Rule FSDP239: parameters changed after a forward, while FSDP1 has the old ones gathered."""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import check_noop, findings

HEAD = """
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import ModuleWrapPolicy, size_based_auto_wrap_policy

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.act = nn.ReLU()

    def forward(self, x):
        for block in self.blocks:
            x = self.act(block(x))
        return x

class Headed(Net):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        return self.head(super().forward(x))

"""
LOOP = """
def run(batches, shadow, other):
    model = {wrap}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
{body}
"""
CHANGE = """
with torch.no_grad():
    model(batch)
    for p, s in zip(model.parameters(), shadow):
        p.copy_(s)
model(batch).sum().backward()
optimizer.step()
"""


def levels(source: str, settings: Settings | None = None, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, settings, **others) if found.rule == "FSDP239"]


def loop(body: str, wrap: str = "FSDP(Net())", to: str = "native") -> list[str]:
    text = HEAD + LOOP.format(wrap=wrap, body=textwrap.indent(textwrap.dedent(body).strip(), " " * 8))
    return levels(text, Settings(to=to))


def test_noop_without_fsdp() -> None:
    check_noop("def swap(model, shadow):\n    for p, s in zip(model.parameters(), shadow):\n        p.copy_(s)\n")


@pytest.mark.parametrize(
    "change",
    [
        "for p, s in zip(model.parameters(), shadow):\n        p.copy_(s)",
        "for p in model.parameters():\n        p.data.mul_(0.5)",
        "for name, p in model.named_parameters():\n        p.data.lerp_(shadow[name], 0.1)",
        "for s, p in zip(shadow, model.parameters()):\n        old = p.detach().clone()\n        p.data.copy_(s)",
    ],
)
def test_a_change_after_an_evaluation(change: str) -> None:
    old = "for p, s in zip(model.parameters(), shadow):\n        p.copy_(s)"
    assert loop(CHANGE.replace(old, change)) == ["manual"]


@pytest.mark.parametrize(
    "body",
    [
        # After a backward nothing is gathered.
        "model(batch).sum().backward()\noptimizer.step()\nfor p in model.parameters():\n    p.data.mul_(0.5)",
        "with torch.no_grad():\n    model(batch)\nfor s, p in zip(shadow, model.parameters()):\n    s.lerp_(p, 0.1)",
        "for p in model.parameters():\n    p.data.mul_(0.5)\nmodel(batch).sum().backward()",
    ],
)
def test_what_changes_nothing_gathered_is_silent(body: str) -> None:
    assert loop(body) == []


@pytest.mark.parametrize(
    ("wrap", "expected"),
    [
        ("FSDP(Net(), auto_wrap_policy=ModuleWrapPolicy({Block}))", []),
        ("FSDP(Headed(), auto_wrap_policy=ModuleWrapPolicy({Block}))", ["manual"]),
        ("FSDP(other, auto_wrap_policy=ModuleWrapPolicy({Block}))", ["manual"]),
        ("FSDP(Net(), auto_wrap_policy=size_based_auto_wrap_policy)", ["manual"]),
    ],
)
def test_what_the_root_has_itself_decides(wrap: str, expected: list[str]) -> None:
    assert loop(CHANGE, wrap) == expected


def test_a_teacher_that_no_backward_goes_through() -> None:
    body = """
loss = (model(batch) - aim(other, batch)).sum()
with torch.no_grad():
    teacher(batch)
loss.backward()
optimizer.step()
for t, p in zip(teacher.parameters(), model.parameters()):
    t.data.mul_(0.9).add_(p.data, alpha=0.1)
"""
    assert loop(body, "FSDP(Net())\n    teacher = FSDP(Net())") == ["manual"]
    with_graph = body.replace("with torch.no_grad():\n    teacher(batch)", "loss = loss + teacher(batch).sum()")
    assert loop(with_graph, "FSDP(Net())\n    teacher = FSDP(Net())") == []


FROZEN = """
loss = (model(batch) - teacher(batch)).square().sum()
loss.backward()
optimizer.step()
with torch.no_grad():
    for p, t in zip(model.module.parameters(), teacher.module.parameters()):
        t.data.mul_(0.9).add_(0.1 * p.detach().data)
"""


@pytest.mark.parametrize(
    "freeze",
    [
        "teacher.requires_grad_(False)",
        "for p in teacher.parameters():\n        p.requires_grad = False",
        "for _, p in teacher.named_parameters():\n        p.requires_grad_(False)",
    ],
)
def test_a_frozen_teacher_whose_forward_builds_no_graph(freeze: str) -> None:
    wrap = "FSDP(Net())\n    teacher = FSDP(Net())"
    assert loop(FROZEN, f"{wrap}\n    {freeze}") == ["manual"]
    assert loop(FROZEN, wrap) == []


def test_the_shim_computes_and_saves_alike() -> None:
    saved = CHANGE.replace("model(batch).sum()", "torch.save(model.state_dict(), 'x')\nmodel(batch).sum()")
    assert (loop(saved), loop(saved, to="shim")) == (["manual"], [])


@pytest.mark.parametrize(
    ("forward", "advice"),
    [
        ("with torch.no_grad():\n            target(batch)", "if it never runs a backward"),
        ("target(batch).sum().backward()\n        target(batch)", "change the parameters before the forward"),
    ],
)
def test_the_advice_for_a_target_network_can_be_followed(forward: str, advice: str) -> None:
    source = f"""
import torch
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def train(net, other, batches, optimizer):
    model, target = FSDP(net), FSDP(other)
    for batch in batches:
        {forward}
        for t, p in zip(target.parameters(), model.parameters()):
            t.data.lerp_(p.data, 0.1)
"""
    found = [one for one in findings(source) if one.rule == "FSDP239"]
    assert [one.level.value for one in found] == ["manual"]
    assert found[0].advice.startswith(advice)
    assert "to keep the numbers, shard by fsdp_compat.shard, remove the reshard here" in found[0].advice.lower()


#: Averages that keep the parameters which they were made of.
KEEPER = """
import contextlib

class Average:
    def __init__(self, parameters):
        self.{kept}
        self.shadow = [p.detach().clone() for p in {held}]

    def update(self):
        for s, p in zip(self.shadow, {held}):
            s.lerp_(p, 0.1)

    def swap_in(self):
        self.saved = [p.clone() for p in {held}]
        for s, p in zip(self.shadow, {held}):
            {change}

    def swap_out(self):
        for s, p in zip(self.saved, {held}):
            p.data.copy_(s)

    @contextlib.contextmanager
    def applied(self):
        self.swap_in()
        yield
        self.swap_out()
"""
KEPT = [
    ("params = list(parameters)", "self.params", "p.data.copy_(s)"),
    ("refs = [weakref.ref(p) for p in parameters]", "[ref() for ref in self.refs]", "p.copy_(s.data)"),
    ("by_number = dict(enumerate(parameters))", "self.by_number.values()", "p.data += s - p"),
    ("groups = [{'params': [*parameters]}]", "self.groups[0]['params']", "torch._foreach_copy_([p], [s])"),
]


def averaged(body: str, keeper: tuple[str, str, str] = KEPT[0]) -> list[str]:
    kept, held, change = keeper
    made = KEEPER.format(kept=kept, held=held, change=change)
    lines = textwrap.indent(textwrap.dedent(body).strip(), " " * 4)
    run = f"\ndef run(batches, other):\n    model = FSDP(Net())\n    average = Average(model.parameters())\n{lines}\n"
    return levels("import weakref\n" + HEAD + made + run)


SAVED = """
model(batches[0]).sum().backward()
average.update()
with torch.no_grad():
    model(batches[1])
average.swap_in()
torch.save(model.state_dict(), "averaged.pt")
"""


@pytest.mark.parametrize("keeper", KEPT)
def test_an_object_that_has_kept_the_parameters_changes_them(keeper: tuple[str, str, str]) -> None:
    assert averaged(SAVED, keeper) == ["manual"]


def test_an_object_changes_them_between_a_reshard_and_the_next_forward() -> None:
    body = SAVED.replace('torch.save(model.state_dict(), "averaged.pt")', "model(batches[1])")
    assert averaged(body) == []
    resharded = body.replace("average.swap_in()", "other.update(model.parameters())\naverage.swap_in()")
    assert averaged(resharded) == ["manual"]


@pytest.mark.parametrize(
    "body",
    [
        SAVED.replace("with torch.no_grad():\n    model(batches[1])\n", ""),
        SAVED.replace("average.swap_in()", "average.update()"),
        SAVED.replace("torch.save", "model(batches[0]).sum().backward()\ntorch.save"),
        SAVED.replace("average.swap_in()", "with average.applied():\n    model(batches[1])"),
        # What is gathered are these averages.
        SAVED.replace("average.update()", "average.swap_in()\nmodel(batches[0])\naverage.update()"),
        SAVED.replace("average.update()", "with average.applied():\n    model(batches[0])"),
        SAVED.replace("average.swap_in()", "with FSDP.summon_full_params(model):\n    average.swap_in()"),
    ],
)
def test_averages_that_change_nothing_gathered_are_silent(body: str) -> None:
    assert averaged(body) == []


def test_a_state_that_is_read_in_the_block_of_a_context() -> None:
    saved = "with average.applied():\n    torch.save(model.state_dict(), 'averaged.pt')"
    assert averaged(SAVED.partition("average.swap_in()")[0] + saved) == ["manual"]


STEPPED = """
model(batch).sum().backward()
{between}
optimizer.step()
{after}
"""
EVALUATED = "with torch.no_grad():\n    model(batches[0])"
SAVES = "torch.save(model.state_dict(), 'last.pt')"


@pytest.mark.parametrize(
    ("between", "after", "expected"),
    [
        (EVALUATED, SAVES, ["manual"]),
        (EVALUATED, "with FSDP.summon_full_params(model):\n    other(model)", ["manual"]),
        (EVALUATED, "", []),
        ("", SAVES, []),
        ("if other:\n    model(batches[0])", SAVES, []),
    ],
)
def test_an_optimizer_steps_after_an_evaluation(between: str, after: str, expected: list[str]) -> None:
    assert loop(STEPPED.format(between=between, after=after), "FSDP(Headed())") == expected
    assert loop(STEPPED.format(between=between, after=after), "FSDP(Headed())", "shim") == []


KEPT = """
class EMA:
    def store(self, parameters):
        self.kept = [p.detach().clone() for p in parameters]

    def restore(self, parameters):
        for old, p in zip(self.kept, parameters):
            p.data.copy_(old.data)

def train(net, batches):
    model = FSDP(net)
    ema = EMA()
    for batch in batches:
        model(batch).sum().backward()
        ema.store(model.parameters())
        {between}
        ema.restore(model.parameters())
"""


@pytest.mark.parametrize(
    ("between", "said"),
    [("with torch.no_grad(): model(batch)", ["manual"]), ("print(batch)", []), ("model(batch).sum().backward()", [])],
)
def test_parameters_that_a_function_gets_and_changes(between: str, said: list[str]) -> None:
    every = findings(HEAD + KEPT.format(between=between))
    assert [one.level.value for one in every if one.rule == "FSDP239"] == said
