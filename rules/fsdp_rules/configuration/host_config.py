"""Rule for documents of frameworks that are only reported."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.verdict.finding import Level


class HostConfig(ConfigRule):
    """FSDP1 in configuration of axolotl, Lightning, NeMo and others.

    axolotl runs FSDP1 unless `fsdp_version` is 2. Its `fsdp_config` is migrated (FSDP531), a list `fsdp` is reported.
    A `class_path` or `_target_` that names a class for FSDP1 is reported as the class is in Python (FSDP553).
    """

    id = "FSDP541"
    name = "host-config"
    dialects = ("host",)
    file = "axolotl.yaml"
    before = """
base_model: some/model
fsdp:
  - full_shard
  - auto_wrap
"""
    after = before

    def visit(self, block: Block) -> Iterable[Verdict]:
        """One finding for each place."""
        match block.around.get("host"):
            case "axolotl":
                yield from self._axolotl(block)
            case "lightning word":
                yield Verdict(
                    None,
                    Level.MANUAL,
                    f"strategy: {block.around['word']} is FSDP1, and Lightning has no word for FSDP2",
                    "Use ModelParallelStrategy with data_parallel_size: WORLD_SIZE and tensor_parallel_size: 1.",
                )
            case _:
                yield Verdict(None, Level.MANUAL, str(block.around["message"]), str(block.around["advice"]))

    def _axolotl(self, block: Block) -> Iterable[Verdict]:
        if block.around["version"] != "2":
            told = "axolotl runs FSDP1 here: fsdp_version is 1 by default"
            advice = "Set fsdp_version: 2, and an fsdp_config with reshard_after_forward in place of the list fsdp."
            yield Verdict(None, Level.MANUAL, told, advice)
