"""FSDP233: names of parameters that FSDP1 had flat."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from tests.rules.helpers import findings

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
FLAT, ORIGINAL = f"{IMPORT}model = FSDP(net)\n", f"{IMPORT}model = FSDP(net, use_orig_params=True)\n"


def said(source: str, settings: Settings | None = None, **others: str) -> list[tuple[int, str]]:
    return [
        (found.line, found.level.value) for found in findings(source, settings, **others) if found.rule == "FSDP233"
    ]


ASKING = [
    "rest = [p for n, p in model.named_parameters() if 'bias' in n]\n",
    "rest = [p for n, p in model.named_parameters() if not any(word in n for word in words)]\n",
    "rest = {n: p for n, p in model.named_parameters() if n.endswith('.bias')}\n",
    "rest = [p for n, p in model.named_parameters() if re.search('bias', n)]\n",
    "rest = [p for n, p in model.named_parameters() if pattern.match(n.lower())]\n",
    "rest = [p for n, p in model.named_parameters() if n not in skipped]\n",
    "rest = [p for i, (n, p) in enumerate(model.named_parameters()) if 'bias' in n]\n",
    "rest = [p for n, p in sorted(model.named_parameters()) if 'bias' in n.split('.')]\n",
    "rest = [p for m in model.modules() for n, p in m.named_parameters(recurse=False) if 'bias' in n]\n",
    "rest = [p for n, p in model.named_parameters() if n == wanted]\n",
]


@pytest.mark.parametrize("use", ASKING)
@pytest.mark.parametrize("to", ["native", "shim"])
def test_what_had_no_name_of_its_own(use: str, to: str) -> None:
    settings = Settings(to=to)
    assert said(FLAT + use, settings) == [(3, "manual")]
    assert said(FLAT.replace("(net)", "(net, use_orig_params=False)") + use, settings) == [(3, "manual")]
    assert said(ORIGINAL + use, settings) == []


@pytest.mark.parametrize("use", ASKING)
def test_in_another_file(use: str) -> None:
    source = f"def groups(model):\n    {use}    return rest\n"
    main = "from example import groups\n\ngroups(model)\n"
    assert said(source, main=FLAT + main) == [(2, "manual")]
    assert said(source, main=ORIGINAL + main) == []


def test_statements_of_a_loop() -> None:
    loop = """
for name, p in model.named_parameters():
    if name.endswith("bias"):
        p.requires_grad = False
    is_norm = "norm" in name
    (rest if is_norm else decayed).append(p)
"""
    assert said(FLAT + loop) == [(5, "manual"), (7, "manual")]


@pytest.mark.parametrize(
    "use",
    [
        "for n, p in net.named_parameters():\n    if 'bias' in n:\n        p.grad = None\nmodel = FSDP(net)\n",
        "model = FSDP(net)\nnames = [n for n, p in model.named_parameters() if 'bias' in n]\n",
        "model = FSDP(net)\nwith FSDP.summon_full_params(model):\n"
        "    rest = [p for n, p in model.named_parameters() if 'bias' in n]\n",
        "model = FSDP(net)\nrest = [p for n, p in model.named_parameters() if p in seen]\n",
        "model = FSDP(net)\nrest = [v for k, v in model.state_dict().items() if 'bias' in k]\n",
        "model = FSDP(net)\nrest = [v for k, v in batch.items() if 'bias' in k]\n",
        "model = FSDP(net)\nrest = [p for n, p in model.named_parameters() if p.grad is not None]\n",
    ],
)
def test_other_names_are_left_alone(use: str) -> None:
    assert said(IMPORT + use) == []


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ("use_orig_params=args.original", "manual"),
        ("**{'use_orig_params': True}", None),
        ("**{'use_orig_params': False}", "manual"),
        ("**options", "manual"),
    ],
)
def test_what_is_not_written_in_the_call(given: str, level: str | None) -> None:
    wrap = f"{IMPORT}model = FSDP(net, {given})\n"
    use = "rest = [p for n, p in model.named_parameters() if 'bias' in n]\n"
    assert said(wrap + use) == ([(3, level)] if level is not None else [])


@pytest.mark.parametrize(
    ("asked", "level"),
    [("'lora_B' in n", "review"), ("'norm' in n", "manual"), ("'head.bias' in n", "manual"), ("word in n", "manual")],
)
def test_names_of_units_were_in_the_names_of_their_flat_parameters(asked: str, level: str) -> None:
    assert said(f"{FLAT}rest = [p for n, p in model.named_parameters() if {asked}]\n") == [(3, level)]


def test_whole_names_are_said_once() -> None:
    use = "rest = [p for n, p in model.named_parameters() if n == 'head.bias']\n"
    assert [found.rule for found in findings(FLAT + use) if found.line == 3] == ["FSDP207"]


def test_a_modules_own_names_are_the_same_in_both() -> None:
    use = (
        "for m in model.modules():\n    for n, p in m._parameters.items():\n        if n == 'bias':\n            a(p)\n"
    )
    assert [found.rule for found in findings(ORIGINAL + use) if found.line == 5] == []
    assert said(FLAT + use) == [(5, "manual")]


HANDED = """
def is_late(label, pattern="layer"):
    return pattern in label

def groups(model):
    late = [p for n, p in model.named_parameters() if is_late(n)]
    return late, [n for n, _ in model.named_buffers() if is_late(n)]

groups(model)
"""


def test_a_name_that_a_function_is_given() -> None:
    assert said(FLAT + HANDED) == [(5, "manual")]
    assert said(ORIGINAL + HANDED) == []
    # No parameter is chosen by these.
    assert said(FLAT + HANDED.replace("p for n, p", "n for n, p")) == []


POLICY = f"{IMPORT}model = FSDP(net, auto_wrap_policy=policy)\n"
TAKING = [
    "optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)\n",
    "trained = [p for n, p in model.net.body[0].named_parameters() if p.requires_grad]; SGD(trained)\n",
    "SGD([{'params': model.module.head.parameters()}])\n",
]


@pytest.mark.parametrize("use", TAKING)
def test_parameters_of_a_part(use: str) -> None:
    assert said(FLAT + use) == said(FLAT + use, Settings(to="shim")) == [(3, "manual")]
    assert said(POLICY + use) == [(3, "review")]
    assert said(ORIGINAL + use) == []


@pytest.mark.parametrize(
    "use",
    [
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n",
        "SGD(model.module.parameters())\n",
        "SGD([p for m in model.modules() for p in m.parameters(recurse=False)])\n",
        "count = sum(p.numel() for p in model.head.parameters())\n",
        "device = next(model.head.parameters()).device\n",
        "trained = list(other.head.parameters())\n",
        "with FSDP.summon_full_params(model):\n    held = list(model.head.parameters())\n",
    ],
)
def test_parameters_of_no_part(use: str) -> None:
    assert said(FLAT + use) == []
