"""Rule for paths of FSDP1's classes and functions in configuration."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.verdict.finding import Level


class NamedInConfig(ConfigRule):
    """FSDP1's names in configuration, such as Hydra's `_target_`.

    A value such as `torch.distributed.fsdp.FullyShardedDataParallel`, under any key of YAML, JSON or TOML, is imported
    and called by the program that reads the file. That program still uses FSDP1, even if its Python code is rewritten.
    `fsdp_compat` has all of FSDP1's names.
    """

    id = "FSDP543"
    name = "name-in-config"
    dialects = ("named",)
    file = "train.yaml"
    before = """
parallel:
  _target_: torch.distributed.fsdp.FullyShardedDataParallel
  use_orig_params: true
"""
    after = before

    def visit(self, block: Block) -> Iterable[Verdict]:
        """One finding for each value."""
        name = str(block.around["name"])
        yield Verdict(
            None,
            Level.MANUAL,
            f"this is the path of FSDP1's {name}: the code that reads it still uses FSDP1",
            f"write fsdp_compat.{name} here, which takes the same arguments, or call fully_shard in Python instead",
        )
