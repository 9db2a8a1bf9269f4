"""Rule for configuration that cannot be read."""

from __future__ import annotations

import re

from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.verdict.finding import Level

#: What is filled in before anything reads the file; "${{ }}" is filled in by GitHub, in a file that is valid YAML.
_TEMPLATE = re.compile(r"(?<!\$)\{\{|\{%|\$\{[A-Z]")
#: A key, an option, a variable or a value that has FSDP used, wherever it stands.
_SETS = re.compile(
    r"""(^|[{,])[ \t]*(-[ \t]+)?["']?fsdp\w*["']?[ \t]*:
    | --(use_)?fsdp
    | \b(strategy|distributed_type|class_path|_target_)\b["']?[ \t]*[:=]\S*[ \t]*\S*fsdp
    | \bACCELERATE_USE_FSDP\b
    | \bFSDP_[A-Z_]*(VERSION|STRATEGY|POLICY|PARAMS|PREFETCH|TYPE|FORWARD|WRAP|STATES|LOADING)\b""",
    re.IGNORECASE | re.MULTILINE | re.VERBOSE,
)


class ConfigUnreadable(ConfigRule):
    """FSDP in a file that is not valid YAML or JSON.

    Templates (Jinja, Helm) become configuration only when they are filled in, and the JSON parsers of frameworks accept
    no comments. Such a file is neither changed nor analysed.
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


def template_or_broken(text: str, reason: str) -> tuple[Level, str, str]:
    """Level, message and advice about a text that its reader refused for ``reason``."""
    if _SETS.search(text) is None:
        return (
            Level.INFO,
            f"this file mentions FSDP without setting anything, and cannot be read: {reason}",
            "no change needed",
        )
    if _TEMPLATE.search(text):
        message = "this is a template, which can only be read once it is filled in"
        return Level.MANUAL, message, "Fill it in and check the result."
    message = f"this file mentions FSDP and cannot be read: {reason}"
    return Level.MANUAL, message, "Correct the file and run this tool again."
