"""Programs that hand parameters of a model from file to file; only ``main`` speaks of FSDP1.

``program/main.py`` calls ``run`` of ``program/run.py`` with the model; the rules speak about ``program/steps.py``.
"""

#: How the parameters get to ``use(ps)``: an expression of them in ``run``.
WAYS: dict[str, dict[str, str]] = {
    "argument": {"run": "from program.steps import use\n\n\ndef run(made):\n    use(made.parameters())\n"},
    "list": {"run": "from program.steps import use\n\n\ndef run(made):\n    use(list(made.parameters()))\n"},
    "filtered": {
        "run": """\
from program import steps


def run(made):
    chosen = [p for p in made.parameters() if p.requires_grad]
    steps.use(ps=chosen)
"""
    },
    "named, in a dictionary": {
        "run": """\
from program.steps import use


def run(made):
    named = dict(made.named_parameters())
    use(named.values())
"""
    },
    "named, one by one": {
        "run": """\
from program.steps import use


def run(made):
    kept = []
    for index, (name, weight) in enumerate(made.named_parameters()):
        if index:
            kept.append(weight)
    use(kept)
"""
    },
    "through a third file": {
        "between": "from program import steps\n\n\ndef hand_on(*args):\n    return steps.use(*args)\n",
        "run": "from program.between import hand_on\n\n\ndef run(made):\n    hand_on(made.parameters())\n",
    },
    "returned by a third file": {
        "chosen": "def chosen(net):\n    return [p for n, p in net.named_parameters() if 'bias' not in n]\n",
        "run": """\
from program.chosen import chosen
from program.steps import use


def run(made):
    use(chosen(made))
""",
    },
    "generator": {
        "chosen": "def chosen(net):\n    for p in net.parameters():\n        yield p\n",
        "run": """\
from program.chosen import chosen
from program.steps import use


def run(made):
    use(chosen(made))
""",
    },
    "attribute": {
        "holder": """\
from program.steps import use


class Holder:
    def __init__(self, net):
        self.net = net
        self.weights = list(net.parameters())

    def go(self):
        use(self.weights)
""",
        "run": "from program.holder import Holder\n\n\ndef run(made):\n    Holder(made).go()\n",
    },
    "of an attribute of an object": {
        "holder": "class Holder:\n    def __init__(self, net):\n        self.brain = net\n",
        "run": """\
from program.holder import Holder
from program.steps import use


def run(made):
    for one in [Holder(made)]:
        use(one.brain.parameters())
""",
    },
    "groups": {
        "groups": """\
def groups(net):
    decayed = {"params": [p for p in net.parameters()], "weight_decay": 0.1}
    return [decayed]
""",
        "run": """\
from program.groups import groups
from program.steps import use


def run(made):
    for group in groups(made):
        use(group["params"])
""",
    },
    "optimizer": {
        "run": """\
import torch

from program.steps import use


def run(made):
    opt = torch.optim.SGD(made.parameters(), lr=0.1)
    for group in opt.param_groups:
        use(group["params"])
"""
    },
    "optimizer that is handed on": {
        "optim": """\
import torch


def build(net):
    return torch.optim.AdamW([{"params": net.parameters()}], lr=0.1)
""",
        "between": """\
from program.steps import use


def hand_on(chosen):
    use([p for group in chosen.param_groups for p in group["params"]])
""",
        "run": """\
from program.between import hand_on
from program.optim import build


def run(made):
    hand_on(build(made))
""",
    },
    "callback": {
        "run": """\
from program.steps import use


def apply(work, values):
    work(values)


def run(made):
    apply(use, made.parameters())
"""
    },
}

#: What is done to them, and the rule that speaks about it.
USES: dict[str, tuple[str, str]] = {
    "p.data = other": ("FSDP217", "def use(ps):\n    for p in ps:\n        p.data = p.data.half()\n"),
    "p.data.copy_(other)": (
        "FSDP217",
        "import torch\n\n\ndef use(ps):\n    for p in ps:\n        p.data.copy_(torch.zeros(3))\n",
    ),
    "numpy": ("FSDP217", "def use(ps):\n    return [w.detach().cpu().numpy() for w in ps]\n"),
    "tolist": ("FSDP217", "def use(ps):\n    return [w.tolist() for w in ps]\n"),
    "allclose": (
        "FSDP217",
        "import torch\n\n\ndef use(ps):\n    return all(torch.allclose(p, torch.zeros(3)) for p in ps)\n",
    ),
    "sum of squares": (
        "FSDP222",
        "def use(ps):\n    n = 0\n    for p in ps:\n        n += p.grad.pow(2).sum()\n    return n ** 0.5\n",
    ),
    "norm of gradients": (
        "FSDP222",
        "import torch\n\n\ndef use(ps):\n    found = [p.grad.norm() for p in ps]\n"
        "    return torch.stack(found).norm()\n",
    ),
    "broadcast": (
        "FSDP222",
        "import torch.distributed as dist\n\n\ndef use(ps):\n    for p in ps:\n        dist.broadcast(p, src=0)\n",
    ),
    "gradients of a third function": (
        "FSDP222",
        "def norm(grads):\n    n = 0\n    for g in grads:\n        n += g.pow(2).sum()\n    return n\n\n\n"
        "def use(ps):\n    return norm([p.grad for p in ps if p.grad is not None])\n",
    ),
}
