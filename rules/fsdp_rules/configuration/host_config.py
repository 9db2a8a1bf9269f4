"""Rule for documents of frameworks that are only reported."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.verdict.finding import Level

#: Keys that Composer's FSDP2Config drops.
_COMPOSER = (
    *("sharding_strategy", "cpu_offload", "limit_all_gathers", "backward_prefetch", "forward_prefetch"),
    *("backward_prefetch_limit", "forward_prefetch_limit", "activation_checkpointing_reentrant", "sync_module_states"),
    *("use_orig_params", "keep_low_precision_grads", "data_parallel_shard_degree", "data_parallel_replicate_degree"),
)


class HostConfig(ConfigRule):
    """FSDP1 in configuration of axolotl, Composer, llm-foundry, Lightning, NeMo and others.

    axolotl runs FSDP1 unless `fsdp_version` is 2. Its `fsdp_config` is migrated (FSDP531), a list `fsdp` is reported.
    Composer runs FSDP1 unless the environment says `FSDP_VERSION=2`; its FSDP2 then drops the strategy, offloading and
    the sizes of hybrid sharding with a warning, and saves sharded checkpoints by default. A `class_path` or `_target_`
    that names a class for FSDP1 is reported as the class is in Python (FSDP553).
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
            case "composer":
                dropped = ", ".join(name for name in _COMPOSER if name in block.settings)
                yield Verdict(
                    None,
                    Level.MANUAL,
                    "Composer runs FSDP1 here, unless the environment says FSDP_VERSION=2",
                    f"FSDP_VERSION=2 drops {dropped or 'no key'}: write reshard_after_forward and state_dict_type.",
                )
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
