"""Rule for combinations that frameworks refuse."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Plain, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.trainer_version import trainer_is_fsdp2
from fsdp_rules.frameworks.refusals import refusals
from fsdp_rules.verdict.finding import Level


class Refused(ConfigRule):
    """Combinations that the validators of axolotl, LLaMA-Factory, the Trainer and ms-swift refuse.

    rules/fsdp_rules/frameworks/refusals.toml lists them with the place in the framework's code. A file is kept if it
    would no longer start under FSDP2. A combination that both versions refuse is only reported. TRL's trainers check
    their configuration with transformers' code.
    """

    id = "FSDP533"
    name = "refused-combination"
    dialects = ("axolotl", "transformers", "host", "swift")
    file = "axolotl.yaml"
    before = """
base_model: some/model
load_in_4bit: true
fsdp_config:
  cpu_ram_efficient_loading: true
"""
    after = before

    def visit(self, block: Block) -> Iterable[Verdict]:
        """One finding for each combination."""
        if block.dialect == "host" and block.around.get("host") != "trainer":
            return
        moves = not trainer_is_fsdp2(block)
        for one in refusals("transformers" if block.dialect == "host" else block.dialect):
            if one.applies(lambda key: _value(block, key)):
                values = {key: _value(block, key) for key in one.when if "." not in key}
                keeps = one.version == 2 and moves
                yield Verdict(None, Level.MANUAL, one.message.format(**values), one.advice, keeps=keeps)


def _value(block: Block, key: str) -> Plain:
    inner = key.removeprefix("fsdp_config.")
    return block.value(inner) if inner != key else block.around.get(key)
