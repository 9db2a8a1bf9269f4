"""Attributes that objects have from a base class, or that a class gives to the methods of its base."""

from __future__ import annotations

import pytest

from tests.rules.helpers import findings

IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
WRAPS = """
    def __init__(self, net):
        self.net = FSDP(net, use_orig_params=True)
        self.kept = list(self.net.parameters())

    @property
    def trained(self):
        return [p for p in self.net.parameters() if p.requires_grad]
"""
USES = {
    "alias": ("m = self.net\n        return m.module.config", "FSDP206"),
    "list": ("return [p.grad.norm().item() for p in self.kept]", "FSDP222"),
    "loop": ("for p in self.trained:\n            total = p.grad.norm().item()", "FSDP222"),
    "argument": ("return config(self.net)\n\n\ndef config(model):\n    return model.module.config", "FSDP206"),
    "dict": ("held = {'a': self.net}\n        return held['a'].module.config", "FSDP206"),
}


def rules(source: str, **others: str) -> set[str]:
    return {found.rule for found in findings(source, **others)}


@pytest.mark.parametrize("use", USES)
def test_what_a_base_has_is_followed_into_what_extends_it(use: str) -> None:
    body, rule = USES[use]
    method = f"    def use(self):\n        {body}\n"
    base = f"{IMPORT}\n\nclass Base:{WRAPS}"
    assert rule in rules(f"{base}\n\nclass Loop(Base):\n{method}")
    assert rule in rules(f"from base import Base\n\n\nclass Loop(Base):\n{method}", base=base)
    middle = "from base import Base\n\n\nclass Middle(Base):\n    pass\n"
    assert rule in rules(f"from middle import Middle\n\n\nclass Loop(Middle):\n{method}", base=base, middle=middle)


@pytest.mark.parametrize("use", USES)
def test_what_a_class_has_is_followed_into_its_base(use: str) -> None:
    body, rule = USES[use]
    base = f"class Base:\n    net = None\n\n    def use(self):\n        {body}\n"
    loop = f"\n\nclass Loop(Base):{WRAPS}"
    assert rule in rules(f"{IMPORT}\n\n{base}{loop}")
    assert rule in rules(base, loop=f"{IMPORT}from example import Base\n{loop}")


@pytest.mark.parametrize("use", USES)
def test_what_one_base_has_is_followed_into_another(use: str) -> None:
    body, rule = USES[use]
    mixin = f"class Saves:\n    def use(self):\n        {body}\n"
    base, both = f"{IMPORT}\n\nclass Base:{WRAPS}", "class Loop(Saves, Base):\n    pass\n"
    assert rule in rules(f"{base}\n\n{mixin}\n\n{both}")
    assert rule in rules(mixin, base=base, loop=f"from base import Base\nfrom example import Saves\n\n\n{both}")


@pytest.mark.parametrize("use", ["alias", "argument", "dict"])
def test_methods_that_a_class_has_of_its_own_do_not_run_for_its_objects(use: str) -> None:
    body, rule = USES[use]
    base = f"class Base:\n    net = None\n\n    def use(self):\n        {body}\n"
    source = f"{IMPORT}\n\n{base}\n\nclass Loop(Base):{WRAPS}\n    def use(self):\n        return RESULT\n"
    assert rule not in rules(source.replace("RESULT", "None"))
    assert rule in rules(source.replace("RESULT", "super().use()"))
    other = "\n\nclass Other(Base):\n    def other(self):\n        m = self.net\n        return m.module\n"
    assert rule not in rules(source.replace("RESULT", "None") + other)


@pytest.mark.parametrize("use", ["alias", "argument", "dict"])
def test_what_is_its_own_is_its_own(use: str) -> None:
    body, rule = USES[use]
    own = f"    def __init__(self, net):\n        self.net = Wrapper(net)\n\n    def use(self):\n        {body}\n"
    base = f"{IMPORT}\n\nclass Base:{WRAPS}"
    assert rule not in rules(f"from wrappers import Wrapper\n\n\nclass Loop:\n{own}", base=base)
