"""Rule for configuration that cannot be read."""

from __future__ import annotations

import re

from fsdp_rules.configuration.config_rule import ConfigRule

_TEMPLATE = re.compile(r"\{\{|\{%|\$\{[A-Z]")


class ConfigUnreadable(ConfigRule):
    """FSDP in a file that is not valid YAML or JSON.

    Templates (Jinja, Helm) become configuration only when they are filled in, and JSON has no comments for the readers
    that frameworks use. Nothing of such a file is changed, and nothing is known about it.
    """

    id = "FSDP590"
    name = "config-unreadable"
    dialects = ()
    before = """
{% if multi_node %}
fsdp_config:
  fsdp_sharding_strategy: HYBRID_SHARD
{% endif %}
"""
    after = before


UNREADABLE = ConfigUnreadable()


def template_or_broken(text: str, reason: str) -> tuple[str, str]:
    """Message and advice about a text that its reader refused for ``reason``."""
    if _TEMPLATE.search(text):
        return "this is a template, which cannot be read before it is filled in", "Fill it in and check the result."
    return f"this file mentions FSDP and cannot be read: {reason}", "Correct the file and run this tool again."
