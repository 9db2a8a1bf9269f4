"""Rule for ``fsdp_version``."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.launched import ACCELERATE, VERSION, is_fsdp1, is_read
from fsdp_rules.verdict.finding import Level

#: The first accelerate that has FSDP2.
FIRST = (1, 6)


class ConfigVersion(ConfigRule):
    """`fsdp_version` of accelerate (default: 1).

    It chooses the FSDP that `accelerate launch` starts. The file moves as a whole. If one key of it has no counterpart,
    no key is changed, and the finding on that key says why. A file whose `distributed_type` is not `FSDP` does not
    start FSDP and is kept. All files are kept if the project's requirements exclude every accelerate with FSDP2 (1.6 or
    newer).
    """

    id = "FSDP501"
    name = "config-version"
    dialects = (ACCELERATE,)
    before = """
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP  # one unit per layer
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: Block
mixed_precision: 'no'
num_machines: 1
num_processes: 8
"""
    after = """
distributed_type: FSDP
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP  # one unit per layer
  fsdp_reshard_after_forward: true
  fsdp_state_dict_type: SHARDED_STATE_DICT
  fsdp_transformer_layer_cls_to_wrap: Block
  fsdp_version: 2
mixed_precision: 'no'
num_machines: 1
num_processes: 8
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """The switch itself, and files that start something else."""
        version = block.get(VERSION)
        if not is_read(block):
            kind = block.around["distributed_type"]
            yield Verdict(
                None,
                Level.INFO,
                f"fsdp_config is not read: distributed_type is {kind}",
                "Remove fsdp_config, or set distributed_type: FSDP and run this tool again.",
            )
        elif block.form == "over a file":
            yield Verdict(
                None,
                Level.MANUAL if is_fsdp1(block) else Level.INFO,
                "these flags override the file of --config_file, so both must agree",
                "Move the flags to the file, and run this tool on it.",
                keeps=True,
            )
        elif is_fsdp1(block) and block.accelerate is not None and block.accelerate < FIRST:
            release = ".".join(map(str, block.accelerate))
            told = f"the newest accelerate that the project allows is {release}, which has no FSDP2"
            yield Verdict(version, Level.MANUAL, told, "Require accelerate>=1.6 and run this tool again.", keeps=True)
        elif is_fsdp1(block):
            if version is None:
                yield Verdict(None, Level.SAFE, "FSDP1 becomes FSDP2", change=Change(added={VERSION: 2}))
            elif str(version.value) == "1":
                yield Verdict(version, Level.SAFE, "FSDP1 becomes FSDP2", change=Change({version.written: 2}))
            else:
                yield Verdict(
                    version,
                    Level.MANUAL,
                    f"fsdp_version: {version.value} is not a version of FSDP in accelerate",
                    "Set it to 1 and run this tool again, or write the file for version 2.",
                    keeps=True,
                )
