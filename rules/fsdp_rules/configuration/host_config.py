"""Rule for documents of frameworks that are only reported."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.verdict.finding import Level


class HostConfig(ConfigRule):
    """FSDP1 in configuration of axolotl, Lightning, NeMo and others.

    axolotl runs FSDP1 unless `fsdp_version` is 2. Its `fsdp_config` is migrated (FSDP531), a list `fsdp` is reported.
    The Trainer's option `fsdp` without a mapping `fsdp_config`, as in files of LLaMA-Factory and TRL, means FSDP1
    before transformers 5.10 and FSDP2 since then. A `class_path` or `_target_` that names a class for FSDP1 is reported
    like the class in Python (FSDP553).
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
            case "trainer":
                yield self._trainer(block)
            case "lightning word":
                yield Verdict(
                    None,
                    Level.MANUAL,
                    f"strategy: {block.around['word']} is FSDP1, and Lightning has no such name for FSDP2",
                    "Use ModelParallelStrategy with data_parallel_size: WORLD_SIZE and tensor_parallel_size: 1.",
                )
            case _:
                yield Verdict(None, Level.MANUAL, str(block.around["message"]), str(block.around["advice"]))

    def _trainer(self, block: Block) -> Verdict:
        words, config = str(block.around["words"]).lower(), block.around["config"]
        refused = [word for word in ("hybrid_shard", "no_shard") if word in words]
        if refused:
            told = f"transformers' FSDP2 refuses {refused[0]} with ValueError"
            return Verdict(None, Level.MANUAL, told, "Set version: 1 in fsdp_config, or use full_shard.")
        if isinstance(config, str):
            told = f"the FSDP version comes from {config}"
            return Verdict(None, Level.INFO, told, "Run this tool on that file, too.")
        told = "without a version this is FSDP1 before transformers 5.10 and FSDP2 since then"
        reshard = "false" if "shard_grad_op" in words else "true"
        offload = ", cpu_offload: true" if "offload" in words else ""
        advice = f"Write fsdp_config: {{version: 2, reshard_after_forward: {reshard}{offload}}} for transformers 5.10."
        return Verdict(None, Level.MANUAL, told, advice)

    def _axolotl(self, block: Block) -> Iterable[Verdict]:
        if block.around["version"] != "2":
            told = "axolotl runs FSDP1 here: fsdp_version is 1 by default"
            advice = "Set fsdp_version: 2, and an fsdp_config with reshard_after_forward in place of the list fsdp."
            yield Verdict(None, Level.MANUAL, told, advice)
