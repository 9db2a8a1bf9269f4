"""Code that stays as it is, over several files: copies of FSDP1, wrappers that stay FSDP1, DDP alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fsdp_rules.engine.rewrite import rewrite_source
from fsdp_rules.settings import Settings
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Unchanged
from tests.rules.helpers import rewrite_tree
from tests.rules.projects import project_of

FSDP = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
COPIES = {
    "its handles": (
        "import torch\nfrom torch.distributed.fsdp._common_utils import _FSDPState\n\n"
        "class FlatParameter(torch.nn.Parameter):\n    pass\n\nclass FlatParamHandle:\n    pass\n"
    ),
    "its run time": (
        f"{FSDP}\ndef _lazy_init(state, m):\n    return m.module if isinstance(m, FSDP) else m\n\n"
        "def _pre_forward_unshard(state, handle):\n    return state._handle\n"
    ),
    "its class": (
        "import torch.nn as nn\n\nclass FullyShardedDataParallel(nn.Module):\n    def __init__(self, module):\n"
        "        super().__init__()\n        self._fsdp_wrapped_module = module\n"
    ),
    "its optimizer's state": (
        f"{FSDP}\ndef _flatten_optim_state_dict(state, m):\n    return FSDP.optim_state_dict(m, state)\n\n"
        "def _rekey_sharded_optim_state_dict(state):\n    return state\n"
    ),
}
KEPT = {
    "a subclass": "class Mine(FSDP):\n    pass\n\ndef wrap(net):\n    return Mine(net)\n",
    "a subclass in a class": (
        "class Mine(FSDP):\n    pass\n\nclass Owner:\n    def __init__(self, net):\n        self.net = Mine(net)\n"
    ),
}
USES = {
    "a test": "if isinstance(owner.net, FSDP):\n        print(owner)",
    "no_sync": "with owner.net.no_sync():\n        owner.net(1)",
    "the inner model": "print(owner.net.module)",
}
DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n\n"
ALONE = {
    "a function": "def run(n, x):\n    n = DDP(n)\n    with n.no_sync():\n        n(x)\n    return n.module\n",
    "an object": (
        "class Run:\n    def __init__(self, net):\n        self.net = DDP(net)\n    def step(self, x):\n"
        "        with self.net.no_sync():\n            self.net(x)\n        return self.net.module.state_dict()\n"
    ),
    "a dictionary": "def run(net, x):\n    held = {'net': DDP(net)}\n    return held['net'].module\n",
}


def results(**files: str) -> dict[str, tuple[bool, tuple[Finding, ...]]]:
    """Whether each file changes, and what is said about it."""
    found = rewrite_tree({f"{name}.py": text.encode() for name, text in files.items()})
    return {
        path.removesuffix(".py"): (isinstance(result, Changed), result.findings)
        for path, result in found.items()
        if isinstance(result, Changed | Unchanged)
    }


@pytest.mark.parametrize("text", COPIES.values(), ids=COPIES.keys())
@pytest.mark.parametrize("uses", [True, False], ids=["used", "beside torch's"])
def test_a_copy_of_fsdp1_gets_one_finding_and_no_edit(text: str, uses: bool) -> None:
    module = "copied" if uses else "torch.distributed.fsdp"
    train = (
        f"import copied\nfrom {module} import FullyShardedDataParallel as Kind\n\ndef run(net):\n    return Kind(net)\n"
    )
    changed, said = results(copied=text, train=train).get("copied", (False, ()))
    assert not changed
    assert [found.rule for found in said] == ["FSDP902"]


@pytest.mark.parametrize("wrap", KEPT.values(), ids=KEPT.keys())
@pytest.mark.parametrize("use", USES.values(), ids=USES.keys())
def test_what_uses_a_wrapper_that_stays_gets_one_finding(wrap: str, use: str) -> None:
    tail = "\ndef own(net, owner):\n    owner.net = wrap(net)\n" if "def wrap" in wrap else ""
    found = results(
        own=FSDP + wrap + tail, use=f"import own\n{FSDP if 'FSDP' in use else ''}\ndef run(owner):\n    {use}\n"
    )
    assert [entry.level.value for entry in found["own"][1] if entry.rule == "FSDP119"] == ["manual"]
    changed, said = found["use"]
    assert not changed
    # An FSDP1 wrapper keeps its .module, so that nothing has to be said about a place that only reads it.
    assert {entry.level.value for entry in said} <= {"info"}
    assert len(said) == (0 if use.startswith("print") else 1)


@pytest.mark.parametrize("text", ALONE.values(), ids=ALONE.keys())
@pytest.mark.parametrize(
    "beside", ["", f"{FSDP}\ndef wrap(net):\n    return FSDP(net)\n"], ids=["no FSDP", "beside FSDP"]
)
def test_code_of_ddp_alone_is_left(text: str, beside: str) -> None:
    changed, said = results(loop=DDP + text, **({"other": beside} if beside else {})).get("loop", (False, ()))
    assert not changed
    assert len(said) <= 1
    assert all(found.level.value in ("info", "review") for found in said)


WRAPPED = FSDP + "\ndef wrap(net):\n    return FSDP(net)\n"


def test_a_wrap_that_two_edits_contest_is_still_left_by_hand() -> None:
    project = project_of({"example.py": WRAPPED})
    kept = replace(project.kept, by_hand=(("example.py", "example.py:4", "contested", "write it twice"),))
    result = rewrite_source(WRAPPED.encode(), "example.py", replace(project, kept=kept), Settings())
    assert isinstance(result, Changed), "a TODO above it"
    said = {(found.line, found.level.value, found.message) for found in result.findings}
    assert (4, "manual", "contested") in said
