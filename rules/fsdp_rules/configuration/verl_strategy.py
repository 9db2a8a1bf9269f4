"""Rule for verl's ``strategy``."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.verdict.finding import Level

VERL = "verl"


class VerlStrategy(ConfigRule):
    """`strategy: fsdp` of verl's roles.

    `fsdp` is FSDP1, and verl's default. Each role has its own strategy: actor and critic, and the reference and reward
    models if they set one. verl reads it at the level of the role. A `strategy` in the role's `fsdp_config` is
    overwritten and silently has no effect. verl supports fsdp2 since May 2025 (0.4). A tree with the code of an older
    fork keeps its strategies, because only that code reads them: the rewrite changes its Python code, and `fsdp` then
    means FSDP2.
    """

    id = "FSDP521"
    name = "verl-strategy"
    dialects = (VERL,)
    file = "ppo.yaml"
    before = """
actor_rollout_ref:
  actor:
    strategy: fsdp  # FSDP1
    fsdp_config:
      param_offload: false
critic:
  strategy: fsdp
"""
    after = """
actor_rollout_ref:
  actor:
    strategy: fsdp2  # FSDP1
    fsdp_config:
      param_offload: false
critic:
  strategy: fsdp2
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """The strategy of a role, or its absence."""
        setting, nested = block.get("strategy"), block.get("fsdp_config.strategy")
        role = block.around["role"]
        if block.older_verl and (setting is None or setting.word in ("FSDP", "FSDP2")):
            is_new = setting is not None and setting.word == "FSDP2"
            told = f"the verl in this tree has no fsdp2, so {role} runs its own Python code, which uses FSDP1"
            advice = "Rewrite that Python code: the strategy keeps its name, and then shards with FSDP2."
            yield Verdict(setting, Level.MANUAL if is_new else Level.INFO, told, advice)
            return
        advice = "An older fork needs verl's fsdp2 first: see verl's own release notes."
        if setting is None:
            told = f"{role} has no strategy here, so verl's default applies: fsdp, which is FSDP1"
            if nested and nested.word == "FSDP2":
                told = f"fsdp_config.strategy is overwritten by the strategy of {role}: fsdp2 silently runs FSDP1"
            yield Verdict(
                nested, Level.MANUAL, told, f"Write strategy: fsdp2 in {role}, or in the file that it inherits from."
            )
        elif setting.word == "FSDP":
            told = f"strategy of {role}: assumes verl 0.4 or newer, which has fsdp2"
            yield Verdict(setting, Level.REVIEW, told, advice, Change({setting.written: "fsdp2"}))
        least = block.get("min_num_params")
        if setting and setting.word in ("FSDP", "FSDP2") and least and least.word not in ("0", "NONE"):
            yield Verdict(
                least,
                Level.MANUAL,
                "wrap_policy.min_num_params is not read under fsdp2, which only uses layers as units",
                "Name the layers in wrap_policy.transformer_layer_cls_to_wrap, and remove it.",
            )
