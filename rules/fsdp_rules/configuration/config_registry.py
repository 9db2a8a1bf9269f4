"""All rules about configuration, found by looking."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache

from fsdp_rules import configuration
from fsdp_rules.configuration.config_rule import ConfigRule


def _classes() -> Iterator[type[ConfigRule]]:
    for info in pkgutil.iter_modules(configuration.__path__, configuration.__name__ + "."):
        module = importlib.import_module(info.name)
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, ConfigRule) and value.__module__ == module.__name__:
                yield value


@cache
def config_rules() -> tuple[ConfigRule, ...]:
    """One instance of every rule, by id."""
    return tuple(sorted((cls() for cls in _classes() if hasattr(cls, "id")), key=lambda rule: rule.id))
