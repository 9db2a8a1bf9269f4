"""What works on FSDP1's flat shards, in nine places: elements, views, memory, order, counts, functions of functions.

On two ranks with torch 2.13, each of :data:`USES` runs under FSDP1 and raises under FSDP2, or gives other numbers.
"""

from __future__ import annotations

import textwrap

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree

IMPORTS = "import functools\nimport math\n\nimport numpy as np\nimport torch\nimport torch.nn.functional as F\n"
HEAD = f"{IMPORTS}from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
GO = f"{IMPORTS}\ndef go({{name}}, x):\n"
JOB = "from dataclasses import dataclass\n\n@dataclass\nclass Job:\n    core: object\n    name: str\n"
MADE = f"{HEAD}\ndef made(net):\n    return WRAP\n"
BASE = "class Base:\n    def __init__(self, net):\n        self.core = net\n"
#: What is done with the model ``M``, and the rule about that.
USES = {
    "return [float(n) for n in map(torch.norm, M.parameters())]": "FSDP227",
    "return functools.reduce(lambda total, p: total + p.norm(), M.parameters(), 0.0)": "FSDP227",
    "return max(M.parameters(), key=torch.linalg.vector_norm)": "FSDP227",
    "return sorted(M.named_parameters(), key=lambda pair: pair[1].norm())": "FSDP227",
    "return torch.cat(list(map(torch.flatten, M.parameters())))": "FSDP227",
    "return M.head.weight.topk(2)": "FSDP227",
    "return M.head.weight.abs().flatten().sort()": "FSDP227",
    "return F.normalize(M.head.weight, dim=0)": "FSDP227",
    "return (M.head.weight == 0).sum().item()": "FSDP227",
    "return M.head.weight[5].tolist()": "FSDP227",
    "weight = M.head.weight\nwith torch.no_grad():\n    weight[:3] = 0.0": "FSDP227",
    "for p in M.parameters():\n    p.data[0] = 1.0": "FSDP227",
    "for _, p in M.named_parameters():\n    print(p.view(-1))": "FSDP227",
    "return {p.data_ptr() for p in M.parameters()}": "FSDP227",
    "return M.head.weight.untyped_storage().data_ptr()": "FSDP227",
    "return [row.sum() for row in M.head.weight]": "FSDP227",
    "return torch._utils._flatten_dense_tensors(list(M.parameters()))": "FSDP227",
    "return sum(math.prod(p.shape) for p in M.parameters())": "FSDP214",
    "return sum(map(torch.numel, M.parameters()))": "FSDP214",
    "return sum(p.nbytes for p in M.parameters())": "FSDP214",
    "return np.linalg.norm(M.head.weight)": "FSDP217",
    "def note(**given):\n    for name, one in given.items():\n        print(one[0], len(one))\n"
    "for p in M.parameters():\n    note(parameter=p)": "FSDP227",
    "torch.nn.utils.prune.global_unstructured([(M.head, 'weight')], amount=0.2)": "FSDP229",
}
#: What names parameters, counts them or runs the model, and takes nothing of their values.
HARMLESS = (
    "return [(n[0], n.split('.'), len(n)) for n, p in M.named_parameters()]",
    "for item in M.named_parameters():\n    print(item[0], len(item))",
    "params = list(M.parameters())\nparams.sort(key=id)\nreturn params[0], params[:3]",
    "params = dict(M.named_parameters())\nreturn [(n[0], params[n].device) for n in params]",
    "names, params = zip(*M.named_parameters())\nreturn names[0], len(params), params[0].device",
    "for p, q in zip(M.parameters(), x):\n    print(q[0], q.flatten(), len(q), q.norm())",
    "for i, (n, p) in enumerate(M.named_parameters()):\n    print(n[0], x[i])",
    "return sorted(M.named_parameters(), key=lambda item: len(item[0]))",
    "out = M(x)\nreturn out[0], out.view(-1), len(out), out.topk(2), F.mse_loss(out, x)",
    "return M.head.weight.shape[0], M.head.weight.device, len(M.blocks), M.blocks[0]",
    "optimizer = torch.optim.SGD(M.parameters())\n"
    "for group in optimizer.param_groups:\n    print(group['lr'], group[x], len(group))",
    "optimizer = torch.optim.SGD(M.parameters())\nprint(optimizer.param_groups[0]['lr'])",
    "def note(**given):\n    for name, one in given.items():\n        print(one[0], len(one))\n"
    "for n, p in M.named_parameters():\n    note(name=n)",
    "parts = [{}, {}]\nfor n, p in M.named_parameters():\n    parts[len(n) % 2][n] = p\nreturn parts",
    "return [torch.save(p, 'part.pt') for p in M.parameters()]",
    "with torch.no_grad():\n    for p in M.parameters():\n        p[...] = torch.clamp(p, max=x)",
)


def places(use: str, wrap: str) -> dict[str, dict[str, str]]:
    """The program, with the model in nine places: what it does is in steps.py, or in main.py where that is alone."""

    def body(held: str, depth: int = 1) -> str:
        return textwrap.indent(use.replace("M.", f"{held}.").replace("M(", f"{held}("), "    " * depth)

    main = f"{HEAD}from steps import *\n\ndef main(net, x):\n    FSDP(net.other)\n    "
    method = f"\nclass T:\n    def __init__(self, net):\n        FSDP(net.other)\n        self.core = {wrap}\n\n"
    inherits = f"{IMPORTS}from base import Base\n\nclass T(Base):\n    def go(self, x):\n{body('self.core', 2)}\n"
    core = GO.format(name="core") + body("core")
    return {
        "same file": {
            "main.py": f"{HEAD}\ndef main(net, x):\n    FSDP(net.other)\n    core = {wrap}\n{body('core')}\n"
        },
        "other file": {"main.py": f"{main}core = {wrap}\n    go(core, x)\n", "steps.py": core},
        "list": {
            "main.py": f"{main}go([{wrap}], x)\n",
            "steps.py": f"{GO.format(name='cores')}    for core in cores:\n{body('core', 2)}\n",
        },
        "dictionary": {
            "main.py": f"{main}go({{'core': {wrap}}}, x)\n",
            "steps.py": GO.format(name="held") + body("held['core']"),
        },
        "dataclass": {
            "main.py": f"from job import Job\n{main}go(Job({wrap}, 'a'), x)\n",
            "job.py": JOB,
            "steps.py": GO.format(name="job") + body("job.core"),
        },
        "factory": {
            "main.py": f"from making import made\n{main}go(made(net), x)\n",
            "making.py": MADE.replace("WRAP", wrap),
            "steps.py": core,
        },
        "closure": {
            "main.py": f"{HEAD}\ndef main(net):\n    FSDP(net.other)\n    core = {wrap}\n    def inner(x):\n"
            f"{body('core', 2)}\n    return inner\n"
        },
        "method": {"main.py": f"{HEAD}{method}    def go(self, x):\n{body('self.core', 2)}\n"},
        "base class": {
            "base.py": BASE,
            "main.py": f"{main.replace('*', 'T')}T({wrap}).go(x)\n",
            "steps.py": inherits,
        },
    }


def spoken(files: dict[str, str], to: str) -> set[str]:
    for path, text in files.items():
        compile(text, path, "exec", dont_inherit=True)
    results = rewrite_tree({path: text.encode() for path, text in files.items()}, Settings(to=to))
    result = results.get("steps.py" if "steps.py" in files else "main.py", Unchanged())
    assert isinstance(result, Changed | Unchanged), result
    return {found.rule for found in result.findings if found.level in (Level.REVIEW, Level.MANUAL)}


@pytest.mark.parametrize("to", ["native", "shim"])
@pytest.mark.parametrize(("use", "rule"), USES.items())
def test_each_has_a_finding_in_every_place(use: str, rule: str, to: str) -> None:
    silent = [name for name, files in places(use, "FSDP(net)").items() if rule not in spoken(files, to)]
    assert silent == []


@pytest.mark.parametrize("use", USES)
def test_none_has_one_where_the_model_is_not_wrapped(use: str) -> None:
    loud = {name: found for name, files in places(use, "net").items() if (found := spoken(files, "native") & RULES)}
    assert loud == {}


@pytest.mark.parametrize("use", HARMLESS)
def test_what_takes_no_values_has_none(use: str) -> None:
    loud = {
        name: found for name, files in places(use, "FSDP(net)").items() if (found := spoken(files, "native") & RULES)
    }
    assert loud == {}


RULES = set(USES.values())


def test_inside_a_block_that_gathers_nothing_is_said() -> None:
    block = "with FSDP.summon_full_params(core):\n        return core.head.weight[0], core.head.weight.view(-1)"
    assert (
        spoken({"main.py": f"{HEAD}\ndef main(net):\n    core = FSDP(net)\n    {block}\n"}, "native") & RULES == set()
    )
