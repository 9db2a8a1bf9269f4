"""FSDP227 and FSDP228: numbers that programs and optimizers take from sharded parameters."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

HEAD = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
#: What a function of another file does with the model, and the level at which that is reported.
USES = {
    "total = sum(p.norm() ** 2 for p in net.parameters())\n    return x * total": "manual",
    "for p in net.parameters():\n        x += p.detach().float().norm() ** 2\n    return x": "manual",
    "return x + 0.1 * sum((p ** 2).sum() for p in net.parameters())": "manual",
    "return torch.stack([torch.norm(p) for p in net.parameters()]).norm()": "manual",
    "return torch.cat([p.detach().flatten() for _, p in net.named_parameters()])": "manual",
    "return torch.nn.utils.parameters_to_vector(net.parameters())": "manual",
    "held = list(net.parameters())\n    return torch._foreach_norm(held)": "manual",
    "return net.head.weight.abs().mean() + x": "manual",
    "total = sum(p.sum() for p in net.parameters()).item()\n    dist.all_reduce(x)\n    return total": "manual",
    "return max(p.abs().max().item() for p in net.parameters())": "review",
    "print(f'{sum(p.norm() for p in net.parameters())}')": "review",
    "log(norm=float(sum(p.norm() for p in net.parameters())))": "review",
    "return net.get_parameter('head.weight').norm() + x": "manual",
    "return net.get_submodule('head').weight.norm() + x": "manual",
    "head = net.get_submodule('head')\n    print(head.weight.norm())": "review",
    "first = next(net.parameters())\n    print(first.norm())": "review",
    "print(list(net.parameters())[0].norm())": "review",
    "print(dict(net.named_parameters())['head.weight'].norm())": "review",
    "weight = net.head.weight\n    print(weight.norm())": "review",
    "return [p.full_tensor().norm() for p in net.parameters()]": None,
    "return sum(p.numel() for p in net.parameters() if p.requires_grad)": None,
    "with FSDP.summon_full_params(net):\n        return sum(p.norm() for p in net.parameters())": None,
    "held = [torch.zeros_like(p) for p in net.parameters()]\n    return x + sum(one.sum() for one in held)": "manual",
    "return torch.cat([torch.ones_like(p).flatten() for p in net.parameters()])": "manual",
    "return torch.ones_like(x).norm() + torch.cat([x, x]).sum()": None,
    "return any(p.isnan().any() for p in net.parameters())": None,
}


def levels(rule: str, source: str, **others: str) -> list[str]:
    return [found.level.value for found in findings(source, **others) if found.rule == rule]


@pytest.mark.parametrize(("use", "level"), USES.items())
def test_numbers_in_another_file(use: str, level: str | None) -> None:
    source = f"import torch\nimport torch.distributed as dist\n{HEAD}def measure(net, x):\n    {use}\n"
    main = f"{HEAD}from example import measure\n\nmodel = FSDP(model)\nmeasure(model, x)\n"
    assert levels("FSDP227", source, main=main) == ([] if level is None else [level])
    plain = main.replace("model = FSDP(model)", "other = FSDP(model)").replace("measure(model", "measure(build()")
    assert levels("FSDP227", source, main=plain) == []


KEPT = {
    "print(optimizer.state[next(model.parameters())]['exp_avg'].norm())": ["review"],
    "for p in model.parameters():\n    state = optimizer.state[p]\n    x += state['exp_avg_sq'].sqrt().mean()": [
        "manual"
    ],
    "for p in model.parameters():\n    optimizer.state[p]['exp_avg'].zero_()": [],
    "def look(metrics):\n    print(metrics['exp_avg'].norm())": ["review"],
    "print(metrics['loss'].mean())": [],
}


@pytest.mark.parametrize(("use", "expected"), KEPT.items())
def test_what_an_optimizer_keeps_is_sharded_as_its_parameters(use: str, expected: list[str]) -> None:
    head = f"import torch\n{HEAD}model = FSDP(model)\noptimizer = torch.optim.AdamW(model.parameters())\n"
    assert levels("FSDP227", f"{head}{use}\n") == expected
    assert levels("FSDP227", f"import torch\nmodel = build()\n{use}\n") == []


OWN = """
import torch


class Trust(torch.optim.Optimizer):
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                {line}
"""


@pytest.mark.parametrize(
    ("line", "given", "level"),
    [
        ("p.sub_(p.grad * p.norm() / p.grad.norm())", "FSDP(net).parameters()", "review"),
        ("p.sub_(p.grad * p.norm() / p.grad.norm())", "model.parameters()", "manual"),
        ("p.sub_(p.grad * p.grad.square().mean(dim=-1, keepdim=True))", "model.parameters()", "manual"),
        ("p.sub_(p.grad * p.to_local().norm())", "model.parameters()", None),
        ("p.sub_(p.grad.sign())", "model.parameters()", None),
        ("p.sub_(p.grad * p.norm() / p.grad.norm())", "other.parameters()", None),
        ("p.sub_(p.grad * p.norm() / p.grad.norm())", "groups", "review"),
    ],
)
def test_optimizers_of_the_program(line: str, given: str, level: str | None) -> None:
    main = f"{HEAD}from example import Trust\n\nmodel = FSDP(net)\nother = net.part\noptimizer = Trust({given}, lr=1)\n"
    assert levels("FSDP228", OWN.format(line=line), main=main) == ([] if level is None else [level])


GIVEN_ON = """
import torch


class Layered(torch.optim.Optimizer):
    def step(self):
        for group, p in self.pairs():
            ratio = p.data.norm() / torch.linalg.vector_norm(p.grad)
            p.data.add_(p.grad, alpha=-group["lr"] * ratio)

    def pairs(self):
        kept, *rest = [(group, p) for group in self.param_groups for p in group["params"]]
        for following in [*rest, kept]:
            yield kept
            kept = following
"""


@pytest.mark.parametrize(
    ("chosen", "level"),
    [
        ("[p for p in model.parameters() if p.requires_grad]", "review"),
        ("{name: p for name, p in model.named_parameters() if 'bias' not in name}.values()", "review"),
        ("[p for p in other.parameters() if p.requires_grad]", None),
    ],
)
def test_parameters_that_were_picked_before(chosen: str, level: str | None) -> None:
    wrapped = f"{HEAD}import torch\nfrom example import Layered\n\nmodel = FSDP(net)\nother = torch.nn.Linear(2, 2)\n"
    main = f"{wrapped}chosen = {chosen}\noptimizer = Layered(list(chosen), lr=args.lr)\n"
    assert levels("FSDP228", GIVEN_ON, main=main) == ([] if level is None else [level])


@pytest.mark.parametrize(
    ("made", "level"),
    [
        ("torch.optim.Rprop(model.parameters())", "manual"),
        ("torch.optim.SGD(model.parameters(), lr=1, fused=True)", "manual"),
        ("torch.optim.Adagrad([{'params': model.parameters()}], fused=FUSED)", "manual"),
        ("torch.optim.SGD(model.parameters(), lr=1, fused=False)", None),
        ("torch.optim.Adagrad(model.parameters())", None),
        ("torch.optim.AdamW(model.parameters(), fused=True)", None),
        ("torch.optim.Rprop(other.parameters())", None),
    ],
)
def test_optimizers_that_cannot_step_dtensors(made: str, level: str | None) -> None:
    source = f"import torch\n{HEAD}model = FSDP(net)\nother = build()\noptimizer = {made}\n"
    said = [found for found in findings(source) if found.rule == "FSDP228"]
    assert [found.level.value for found in said] == ([] if level is None else [level])
    assert all("raises in its first step" in found.message for found in said)


@pytest.mark.parametrize(
    ("made", "freezes", "settings", "level"),
    [
        ("AdamW(model.parameters(), fused=True)", "", Settings(torch=(2, 13)), "manual"),
        ("SGD(model.parameters(), lr=1, foreach=True)", "", Settings(torch=(2, 7)), "manual"),
        ("AdamW(model.parameters(), fused=True)", "net.lora.requires_grad_(False)", Settings(torch=(2, 13)), "review"),
        ("AdamW([{'params': model.parameters()}], fused=True)", "", Settings(torch=(2, 13)), "review"),
        ("AdamW(model.parameters(), foreach=False)", "", Settings(torch=(2, 13)), None),
        ("AdamW(model.parameters())", "", Settings(torch=(2, 13)), None),
        ("AdamW(net.lora.parameters(), fused=True)", "", Settings(torch=(2, 13)), None),
        # fsdp_compat steps such groups one by one.
        ("AdamW(model.parameters(), fused=True)", "", Settings(torch=(2, 6)), None),
        ("AdamW(model.parameters(), fused=True)", "", Settings(torch=(2, 13), to="shim"), None),
    ],
)
def test_groups_of_ignored_and_sharded_parameters(
    made: str, freezes: str, settings: Settings, level: str | None
) -> None:
    wrapped = f"import torch\n{HEAD}{freezes}\nmodel = FSDP(net, ignored_modules=[net.lora])\n"
    source = f"{wrapped}optimizer = torch.optim.{made}\n"
    said = [found for found in findings(source, settings) if found.rule == "FSDP228"]
    assert [found.level.value for found in said] == ([] if level is None else [level])


METRICS = """
import torch


class Lion(torch.optim.Optimizer):
    def step(self):
        norms = []
        for group in self.param_groups:
            for p in group["params"]:
                update = p.grad.sign()
                p.sub_(update * group["lr"])
                {line}
        {after}

    def get_metrics(self):
        return {{"norm": getattr(self, "total", None)}}
"""


@pytest.mark.parametrize(
    ("line", "after", "level"),
    [
        ("norms.append(update.norm())", "self.total = torch.stack(norms).norm()", "review"),
        ("norms.append(torch.linalg.vector_norm(update))", "self.total = max(norms)", "review"),
        ("self.log(update.norm())", "pass", "review"),
        ("self.total = update.norm()", "if self.total is None:\n            self.total = 0", "review"),
        ("self.seen = float(update.norm())", "pass", "review"),
        ("norms.append(update.norm())", "for n in norms:\n            p.mul_(n)", "manual"),
        ("norm = update.norm()", "p.div_(norm)", "manual"),
        ("norm = update.norm()\n                scaled = norm * 2", "if scaled > 3:\n            return", "manual"),
        ("self.scale = update.norm()", "p.mul_(self.scale)", "manual"),
        ("self.scale = update.norm()", "return self.scale", "manual"),
        ("self.clip(update.norm())", "pass", "manual"),
        ("p.data = p / p.norm()", "pass", "manual"),
    ],
)
def test_numbers_that_an_optimizer_only_keeps(line: str, after: str, level: str) -> None:
    main = f"{HEAD}from example import Lion\n\nmodel = FSDP(net)\noptimizer = Lion(model.parameters(), lr=1)\n"
    assert set(levels("FSDP228", METRICS.format(line=line, after=after), main=main)) == {level}


@pytest.mark.parametrize(
    ("made", "level"),
    [
        ("torch.optim.Adafactor(model.parameters())", "manual"),
        ("torch.optim.LBFGS(model.parameters())", "manual"),
        ("(lambda held: torch.optim.LBFGS(held))(list(model.parameters()))", "manual"),
        ("transformers.Adafactor([p for p in model.parameters() if p.requires_grad], lr=1)", "manual"),
        ("torch.optim.Muon([p for p in model.parameters()])", "manual"),
        ("SingleDeviceMuonWithAuxAdam(groups)", "review"),
        ("FusedLAMB(groups)", "review"),
        ("torch.optim.LBFGS(other.parameters())", None),
        ("torch.optim.AdamW(model.parameters())", None),
    ],
)
def test_optimizers_of_libraries(made: str, level: str | None) -> None:
    source = f"import torch\nimport transformers\n{HEAD}model = FSDP(net)\noptimizer = {made}\n"
    assert levels("FSDP228", source) == ([] if level is None else [level])
