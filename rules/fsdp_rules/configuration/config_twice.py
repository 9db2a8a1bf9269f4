"""Rule for keys that are written twice around a framework's settings."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.keys import written_twice


class ConfigTwice(ConfigRule):
    """A key that is written twice in the mapping of a framework's settings.

    The frameworks silently use the last value, other parsers reject the file, and a person may read the first. A file
    is kept if one of these keys occurs in it more than once: `fsdp_config`, a `strategy`, or a neighbouring key that
    changes their meaning. Other keys are not checked.
    """

    id = "FSDP591"
    name = "config-double-key"
    dialects = ("accelerate", "transformers", "verl", "axolotl", "composer")
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
fsdp_config:
  fsdp_sharding_strategy: SHARD_GRAD_OP
"""
    after = before

    def visit(self, block: Block) -> Iterable[Verdict]:
        """Each key that counts less than a later one."""
        yield from written_twice(block.twice)
