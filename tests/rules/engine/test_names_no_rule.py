"""The engine names no rule: what it needs of one it finds by an attribute, so that rules come and go without it."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from fsdp_rules import engine
from fsdp_rules.engine.registry import all_rules
from fsdp_rules.verdict.rule import Role, Rule

MODULES = [info.name for info in pkgutil.iter_modules(engine.__path__, f"{engine.__name__}.")]
NUMBER = re.compile(r"FSDP\d{3}")
#: A prefix of numbers, as in ``id.startswith("FSDP2")``; in running text FSDP2 is torch's.
PREFIX = re.compile(r"FSDP\d")


@pytest.mark.parametrize("name", MODULES, ids=lambda name: name.rpartition(".")[2])
def test_the_engine_names_no_rule(name: str) -> None:
    module = importlib.import_module(name)
    text = Path(str(module.__file__)).read_text(encoding="utf-8")
    assert not NUMBER.findall(text)
    texts = [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]
    assert not [one for one in texts if isinstance(one, str) and PREFIX.fullmatch(one)]
    rules = [one for one, value in vars(module).items() if isinstance(value, type) and issubclass(value, Rule)]
    assert set(rules) <= {"Rule"}, "the class of one rule is its name too"


def test_a_number_of_a_rule_would_be_seen() -> None:
    assert NUMBER.search('select=("FSDP100",)')
    assert PREFIX.fullmatch("FSDP2")
    assert not PREFIX.fullmatch("fully_shard is FSDP2's")


@pytest.mark.parametrize("role", Role)
def test_each_role_is_one_rules(role: Role) -> None:
    assert len([rule for rule in all_rules() if rule.role is role]) == 1
