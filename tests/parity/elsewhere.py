"""Programs that read or change a model's parameters in another function, or another file, than its forward."""

from __future__ import annotations

from tests.parity.test_gathered import main
from tests.parity.trees import tree

IMPORTS = "import torch\nimport torch.distributed as dist\nfrom common import data, note\n"
STEPS = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    loss = model(data()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    note(loss)
    {forward}
    {call}
"""
FORWARD = "with torch.no_grad():\n        note(model(data()).mean())"
#: What each program does with ``net``; names in capitals are kept between two calls.
AVERAGE = """
KEPT = []

@torch.no_grad()
def op(net):
    if not KEPT:
        KEPT.extend(w.detach().clone() for w in net.parameters())
    for mine, w in zip(KEPT, net.parameters()):
        mine.lerp_(w, 0.1)
"""
FREEZE = """
KEPT = [0]

def op(net):
    KEPT[0] += 1
    for name, w in net.named_parameters():
        w.requires_grad = KEPT[0] % 2 == 0 or "bias" not in name
"""
OPTIMIZER = """
KEPT = []

def op(net):
    if not KEPT:
        KEPT.append(torch.optim.SGD(net.parameters(), lr=0.05))
    KEPT[0].zero_grad()
    net(data()).mean().backward()
    KEPT[0].step()
"""
SHRINK = """
KEPT = []

def op(net):
    if not KEPT:
        KEPT.extend([w for w in net.parameters() if w.requires_grad])
    net(data()).mean().backward()
    with torch.no_grad():
        for w in KEPT:
            w.mul_(0.9)
            w.grad = None
"""
HEAD = """
def op(net):
    net.head.requires_grad_(not next(net.head.parameters()).requires_grad)
"""
OPERATIONS = {
    "an average": AVERAGE,
    "a freeze loop": FREEZE,
    "an optimizer": OPTIMIZER,
    "kept parameters": SHRINK,
    "a frozen part": HEAD,
}


def _method(text: str) -> str:
    """``text`` as a class whose method ``op`` does the same."""
    kept, _, body = text.strip("\n").rpartition("@torch.no_grad()\n" if "@torch.no_grad()" in text else "def op(net):")
    body = f"    {'@torch.no_grad()' if '@torch.no_grad()' in text else 'def op(self):'}\n" + "\n".join(
        f"    {line}" if line else "" for line in body.strip("\n").split("\n")
    )
    body = body.replace("def op(net)", "def op(self)").replace("net.", "self.net.").replace("net(", "self.net(")
    return f"""{IMPORTS}{kept}

class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)

{body}

    def probe(self):
        with torch.no_grad():
            note(self.net(data()).mean())

    def fit(self):
        for step in range(4):
            loss = self.net(data()).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            note(loss)
            self.probe()
            self.op()
"""


def programs(text: str) -> dict[str, dict[str, str]]:
    """The programs in which ``text``, a function ``op(net)``, runs after a forward, by where it is."""
    plain, tools = STEPS.format(forward=FORWARD, call="op(model)"), IMPORTS + text
    probes = f"{IMPORTS}\n\n@torch.no_grad()\ndef probe(m):\n    note(m(data()).mean())\n"
    listed = STEPS.format(forward=FORWARD, call="for one in AFTER:\n        one({'net': model}['net'])")
    inner = text.replace("def op(net)", "def op()").replace("net.", "model.").replace("net(", "model(")
    keyed = "parts = {'net': model}\n" + STEPS.format(forward=FORWARD, call="op(parts)")
    of_key = (
        text.replace("def op(net)", "def op(state)").replace("net.", 'state["net"].').replace("net(", 'state["net"](')
    )
    imports, imported = "import torch.distributed as dist\n", "from tools import op\n"
    third = STEPS.format(forward="probe(model)", call="op(model)")
    return {
        "the same file": tree(train=main(plain, imports=imports + text)),
        "a second file": tree(train=main(plain, imports=imported), tools=tools),
        "three files": tree(
            train=main(third, imports=f"{imported}from probes import probe\n"), tools=tools, probes=probes
        ),
        "a method": tree(
            train=main("Trainer(model).fit()", imports="from trainer import Trainer\n"), trainer=_method(text)
        ),
        "a closure": tree(
            train=main(inner.strip("\n") + "\n" + STEPS.format(forward=FORWARD, call="op()"), imports=imports)
        ),
        "a list": tree(train=main(listed, imports="from tools import AFTER\n"), tools=f"{tools}\n\nAFTER = [op]\n"),
        "a dict": tree(train=main(keyed, imports=imported), tools=IMPORTS + of_key),
    }
