"""Rule for documents of frameworks that are only reported."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.verdict.finding import Level

#: Keys that axolotl's model of `fsdp_config` does not have, or that FSDP2 does not.
_AXOLOTL = ("sharding_strategy", "backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params")
#: Keys that Composer's FSDP2Config drops.
_COMPOSER = (
    *("sharding_strategy", "cpu_offload", "limit_all_gathers", "backward_prefetch", "forward_prefetch"),
    *("backward_prefetch_limit", "forward_prefetch_limit", "activation_checkpointing_reentrant", "sync_module_states"),
    *("use_orig_params", "keep_low_precision_grads", "data_parallel_shard_degree", "data_parallel_replicate_degree"),
)


class HostConfig(ConfigRule):
    """FSDP1 in configuration of axolotl, Composer, llm-foundry, Lightning, NeMo and others.

    axolotl runs FSDP1 unless `fsdp_version` is 2, and drops keys that its model of `fsdp_config` does not have.
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
fsdp_config:
  fsdp_offload_params: true
  fsdp_sharding_strategy: FULL_SHARD
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
        old = [block.settings[name] for name in _AXOLOTL if name in block.settings]
        if block.around["version"] == "2":
            for setting in old:
                told = f"{setting.written} has no effect: fsdp_version is 2 here"
                yield Verdict(setting, Level.MANUAL, told, "Use reshard_after_forward, or remove the key.")
            return
        names = ", ".join(setting.written for setting in old)
        yield Verdict(
            None,
            Level.MANUAL,
            "axolotl runs FSDP1 here: fsdp_version is 1 by default",
            f"Set fsdp_version: 2 and reshard_after_forward, remove the list fsdp{': and ' * bool(names)}{names}.",
        )
