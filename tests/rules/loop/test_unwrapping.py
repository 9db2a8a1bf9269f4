"""Wrappers that are taken off one after the other: the loop ends under FSDP2, and under fsdp_compat."""

from __future__ import annotations

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.rules.helpers import findings, rewrite

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
GUARDED = "try:\n    " + IMPORT + "except ImportError:\n    FSDP = None\n"
DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
FORMS = {
    "while": IMPORT + "def f(m):\n    while isinstance(m, FSDP):\n        m = m.module\n    return m\n",
    "guarded import": GUARDED + "def f(m):\n    while isinstance(m, FSDP):\n        m = m.module\n    return m\n",
    "guarded if": GUARDED
    + "def f(m):\n    if FSDP is not None and isinstance(m, FSDP):\n        m = m.module\n    return m\n",
    "guarded expression": GUARDED + "def f(m):\n    return m.module if FSDP and isinstance(m, FSDP) else m\n",
    "recursion": IMPORT
    + DDP
    + "def f(m):\n    if isinstance(m, (DDP, FSDP)):\n        return f(m.module)\n    return m\n",
    "method": IMPORT
    + DDP
    + "class T:\n    def f(self, m):\n        return self.f(m.module) if isinstance(m, (FSDP, DDP)) else m\n",
    "early return": IMPORT + "def f(m):\n    if not isinstance(m, FSDP):\n        return m\n    return m.module\n",
    "assert": IMPORT + "def f(m):\n    assert isinstance(m, FSDP)\n    return m.module\n",
    "units": IMPORT + "def f(m):\n    return [unit.module for unit in FSDP.fsdp_modules(m)]\n",
    "modules": IMPORT + "def f(m):\n    return [u.module for u in m.modules() if isinstance(u, FSDP)]\n",
}
LEFT = {
    "a loop that counts": IMPORT
    + "def f(m):\n    n = 0\n    while isinstance(m, FSDP):\n        n += 1\n        m = m.module\n    return n\n",
    "classes that are added": GUARDED
    + "ALL = ()\nALL += (FSDP,)\ndef f(m):\n    while isinstance(m, ALL):\n        m = m.module\n",
    "recursion for FSDP alone": IMPORT + "def f(m):\n    return f(m.module) if isinstance(m, FSDP) else m\n",
}


@pytest.mark.parametrize("source", FORMS.values(), ids=FORMS.keys())
def test_what_is_rewritten_asks_no_sharded_model_for_the_one_inside(source: str) -> None:
    result = rewrite(source)
    assert isinstance(result, Changed)
    text = result.source.decode()
    assert [found for found in result.findings if found.level == "manual"] == []
    body = text.partition("def f")[2].replace(".modules()", "")
    assert ".module" not in body or ("FSDPModule" not in body and "DDP)" in body)


@pytest.mark.parametrize("source", LEFT.values(), ids=LEFT.keys())
def test_what_cannot_be_rewritten_is_said(source: str) -> None:
    assert "manual" in {found.level for found in findings(source)}


@pytest.mark.parametrize("name", ["while", "guarded import", "recursion", "method"])
def test_the_shim_knows_its_own_module(name: str) -> None:
    result = rewrite(FORMS[name], Settings(to="shim"))
    assert isinstance(result, Changed)
    assert "and m.module is not m" in result.source.decode()
    again = rewrite(result.source, Settings(to="shim"))
    assert not isinstance(again, Changed)


def test_under_the_shim_any_loop_that_ends_by_an_attribute_asks_too() -> None:
    source = IMPORT + "def f(m):\n    while hasattr(m, 'module'):\n        m = m.module\n    return FSDP(m)\n"
    result = rewrite(source, Settings(to="shim"))
    assert isinstance(result, Changed)
    assert "while hasattr(m, 'module') and m.module is not m:" in result.source.decode()


@pytest.mark.parametrize(
    "test",
    [
        "isinstance(m, @)",
        "isinstance(m, (DDP, @)) or type(m) is @",
        "type(m) in (DDP, @) or isinstance(m, @)",
        "(isinstance(m, @)  # why\n           or isinstance(m, DDP))",
    ],
)
def test_what_is_asked_too_leaves_no_class_of_torch_in_the_test(test: str) -> None:
    name = "pkg.FullyShardedDataParallel"
    source = (
        f"import torch.distributed.fsdp as pkg\n{DDP}def f(m):\n    while @:\n        m = m.module\n    return @(m)\n"
    )
    source = source.replace("while @", f"while {test}").replace("@", name)
    result = rewrite(source, Settings(to="shim"))
    assert isinstance(result, Changed)
    assert "and m.module is not m" in result.source.decode()
    assert name not in result.source.decode()
    assert not isinstance(rewrite(result.source, Settings(to="shim")), Changed)


@pytest.mark.parametrize("to", ["native", "shim"])
def test_a_recursion_that_names_the_class_with_its_module(to: str) -> None:
    test = "isinstance(m, pkg.FullyShardedDataParallel)"
    source = f"import torch.distributed.fsdp as pkg\n\ndef f(m):\n    return f(m.module) if {test} else m\n"
    result = rewrite(source, Settings(to=to))
    assert isinstance(result, Changed)
    if to == "shim":
        assert "and m.module is not m" in result.source.decode()
    else:
        assert "FSDP221" in {found.rule for found in result.findings} or "m.module" not in result.source.decode()


def test_other_wrappers_stay() -> None:
    source = DDP + IMPORT + "def f(m):\n    while isinstance(m, DDP):\n        m = m.module\n    return FSDP(m)\n"
    result = rewrite(source, Settings(to="shim"))
    assert isinstance(result, Changed)
    assert "while isinstance(m, DDP):\n        m = m.module\n" in result.source.decode()


@pytest.mark.parametrize("unwraps", ["if", "while"])
def test_an_attribute_of_the_unwrapped_model_is_no_wrapper(unwraps: str) -> None:
    source = (
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n"
        f"def run(model, x):\n    {unwraps} isinstance(model, FSDP):\n        model = model.module\n{{last}}"
    )
    below = findings(source.format(last="    return model.module(x)\n"))
    assert [(found.line, found.level.value) for found in below if found.rule == "FSDP206"] == [(4, "manual")]
    alone = findings(source.format(last="    return model(x)\n"))
    assert [found.level.value for found in alone if found.rule == "FSDP206"] == ["safe"]
