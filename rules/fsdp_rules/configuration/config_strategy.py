"""Rule for ``fsdp_sharding_strategy`` and ``fsdp_reshard_after_forward``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fsdp_rules.configuration.block import Block, Change, New, Setting, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.launched import ACCELERATE, PYTHON, is_fsdp1, named, said
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level

STRATEGY, RESHARD = "fsdp_sharding_strategy", "fsdp_reshard_after_forward"
REPLICATE, SHARD = "parallelism_config_dp_replicate_size", "parallelism_config_dp_shard_size"
RESHARDS = {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "HYBRID_SHARD": True, "HYBRID_SHARD_ZERO2": False}
_NO_SHARD = "NO_SHARD has no FSDP2 setting in accelerate, so this {} is kept on FSDP1"
_DDP = "Set distributed_type: MULTI_GPU and remove fsdp_config: DDP computes the same."
_DDP_IN_PYTHON = "Leave fsdp_plugin out: accelerate's DDP computes the same."


def strategy_name(word: str) -> str | None:
    """The strategy that a name in upper case, or a number, stands for; None if there is none."""
    names = table(ACCELERATE).keys[STRATEGY].values
    if word.isdigit():
        return names[int(word) - 1] if 1 <= int(word) <= len(names) else None
    word = word.removeprefix("SHARDINGSTRATEGY.").removeprefix("_")
    return word if word in names else None


class ConfigStrategy(ConfigRule):
    """`fsdp_sharding_strategy`.

    `fsdp_sharding_strategy` becomes `fsdp_reshard_after_forward`. FSDP2 expects a boolean: true is FULL_SHARD, false is
    SHARD_GRAD_OP. The hybrid strategies also get a `parallelism_config`, with the number of machines and of processes
    per machine from the file. accelerate refuses to start with any other number, so replication cannot be lost. A
    plugin in Python gets the number of GPUs per machine from torch, as FSDP1 does, and the number of machines from
    WORLD_SIZE. Names (in any case) and numbers are interpreted as accelerate interprets them.

    FSDP1 started by the launcher never reads `fsdp_reshard_after_forward`: the launcher always sets a strategy,
    FULL_SHARD if the file has none. The value in such a file never had an effect.
    """

    id = "FSDP502"
    name = "config-sharding-strategy"
    dialects = (ACCELERATE,)
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: 4   # HYBRID_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
mixed_precision: 'no'
num_machines: 2
num_processes: 16
"""
    after = """
distributed_type: FSDP
fsdp_config:
  fsdp_reshard_after_forward: true   # HYBRID_SHARD
  fsdp_state_dict_type: FULL_STATE_DICT
  fsdp_version: 2
mixed_precision: 'no'
num_machines: 2
num_processes: 16
parallelism_config:
  parallelism_config_dp_replicate_size: 2
  parallelism_config_dp_shard_size: 8
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """The strategy that FSDP1 takes today, put in FSDP2's terms."""
        if not is_fsdp1(block):
            return
        setting, reshard = block.get(STRATEGY), block.get(RESHARD)
        name = strategy_name(setting.word) if setting else "FULL_SHARD"
        if setting and name is None:
            yield Verdict(
                setting,
                Level.MANUAL,
                f"{said(block, setting.written, setting.value)} is not a sharding strategy of accelerate",
                "Use FULL_SHARD, SHARD_GRAD_OP or HYBRID_SHARD and run this tool again.",
                keeps=True,
            )
        elif setting and name == "NO_SHARD":
            in_python = block.form == PYTHON
            told = _NO_SHARD.format("plugin" if in_python else "file")
            yield Verdict(setting, Level.MANUAL, told, _DDP_IN_PYTHON if in_python else _DDP, keeps=True)
        elif setting and name in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
            yield self._hybrid(block, setting, reshard, name)
        elif setting and name:
            new = said(block, named(block, RESHARD), RESHARDS[name])
            told = f"{said(block, setting.written, setting.value)} becomes {new}"
            yield Verdict(setting, Level.SAFE, told, change=_renamed(setting, reshard, RESHARDS[name]))
        if reshard and not setting:
            yield self._unread(block, reshard)

    def _hybrid(self, block: Block, setting: Setting, reshard: Setting | None, name: str) -> Verdict:
        if block.form == PYTHON and not block.around.get("accelerator"):
            return Verdict(
                setting,
                Level.MANUAL,
                f"{name} needs a parallelism_config, and this file does not pass the plugin to exactly one Accelerator",
                "Write fsdp_version=2, and ParallelismConfig(dp_replicate_size=MACHINES, dp_shard_size=GPUS).",
                keeps=True,
            )
        if block.form == PYTHON:
            return Verdict(
                setting,
                Level.REVIEW,
                f"{name}: assumes every machine has as many GPUs as this process sees (FSDP1 assumes this too)",
                "accelerate stops at startup if the product of the sizes is not the number of processes.",
                replace(_renamed(setting, reshard, RESHARDS[name]), beside={"parallelism_config": True}),
            )
        machines, processes = block.around.get("num_machines"), block.around.get("num_processes")
        if block.around.get("parallelism_config"):
            return Verdict(
                setting,
                Level.MANUAL,
                f"{name} next to a parallelism_config, which accelerate accepts only with FSDP2",
                "Remove one of them and run this tool again.",
                keeps=True,
            )
        if not isinstance(machines, int) or not isinstance(processes, int) or machines < 1 or processes % machines:
            return Verdict(
                setting,
                Level.MANUAL,
                f"{name} needs the number of machines and of GPUs per machine, which this file does not set",
                "Set num_machines and num_processes (of all machines) and run this tool again.",
                keeps=True,
            )
        change = _renamed(setting, reshard, RESHARDS[name])
        sizes: dict[str, New] = {
            "parallelism_config": {REPLICATE: machines, SHARD: processes // machines},
        }
        return Verdict(
            setting,
            Level.REVIEW,
            f"{name}: assumes num_machines: {machines} with {processes // machines} GPUs on each",
            "accelerate stops at startup if a different number of processes is launched.",
            Change(change.values, change.names, change.removed, beside=sizes),
        )

    def _unread(self, block: Block, reshard: Setting) -> Verdict:
        wished, now = strategy_name(reshard.word), said(block, reshard.written, reshard.value)
        if wished == "FULL_SHARD" or reshard.is_true:
            told = f"{now} means true under FSDP2"
            return Verdict(reshard, Level.SAFE, told, change=Change({reshard.written: True}))
        return Verdict(
            reshard,
            Level.REVIEW,
            f"{now} was never read under FSDP1, which ran FULL_SHARD: now true",
            "Set it to false if you meant SHARD_GRAD_OP.",
            Change({reshard.written: True}),
        )


def _renamed(setting: Setting, reshard: Setting | None, value: bool) -> Change:
    if reshard:
        return Change({reshard.written: value}, removed=(setting.written,))
    return Change({setting.written: value}, {setting.written: RESHARD})
