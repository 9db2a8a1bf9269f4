"""Rule for the version of FSDP that transformers' Trainer takes."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, New, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.config_strategy import RESHARDS, strategy_name
from fsdp_rules.configuration.config_units import SIZE_FAILS
from fsdp_rules.verdict.finding import Level

TRAINER = "transformers"
#: The first release whose version 2 reads all keys.
FIRST = (5, 10)


def trainer_is_fsdp2(block: Block) -> bool:
    return str(block.value("version")) == "2"


def is_xla(block: Block) -> bool:
    return any((found := block.get(name)) is not None and found.is_true for name in ("xla", "xla_fsdp_v2"))


class TrainerVersion(ConfigRule):
    """`version` in the Trainer's `fsdp_config`.

    transformers 5.10 changed the default from 1 to 2: the same file without the key means FSDP1 before 5.10 and FSDP2
    since then. The rewrite writes the version. transformers before 5.0 does not read it. From 5.0 to 5.9, version 2
    saves sharded states and does not read `cpu_offload`. Version 2 ignores `min_num_params` and uses the model's layers
    as units. It fails with `auto_wrap_policy: SIZE_BASED_WRAP` if the model has a list of layers. The strategy and
    offloading in `fsdp` become `reshard_after_forward` and `cpu_offload`. Version 2 rejects `hybrid_shard` and
    `no_shard`.
    """

    id = "FSDP511"
    name = "trainer-version"
    dialects = (TRAINER,)
    file = "fsdp_config.json"
    before = """
{
    "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    "backward_prefetch": "backward_pre",
    "use_orig_params": true
}
"""
    after = """
{
    "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"],
    "version": 2
}
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """The switch itself, the policy that version 2 needs to hear of, and the strategy."""
        version, words = block.get("version"), str(block.around["fsdp"] or "").lower().split()
        prefix = str(block.around["prefix"])
        if is_xla(block):
            yield Verdict(None, Level.INFO, "xla is on: this is PyTorch/XLA's FSDP, which this tool does not change")
            return
        if trainer_is_fsdp2(block):
            return
        refused = [word for word in words if word in ("hybrid_shard", "hybrid_shard_zero2", "no_shard")]
        reshard = block.get("reshard_after_forward")
        if reshard and strategy_name(reshard.word) in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2", "NO_SHARD"):
            refused.append(str(reshard.value))
        if refused:
            advice = 'Set "version": 1 until transformers drops FSDP1, or use full_shard.'
            told = f"transformers' FSDP2 refuses {refused[0]} with ValueError"
            yield Verdict(version or reshard, Level.MANUAL, told, advice, keeps=True)
            return
        if block.transformers is not None and block.transformers < FIRST:
            release = ".".join(map(str, block.transformers))
            told = f"the newest transformers that the project allows is {release}, where version 2 means something else"
            yield Verdict(
                version, Level.MANUAL, told, "Require transformers>=5.10 and run this tool again.", keeps=True
            )
            return
        told = "assumes transformers 5.10 or newer: before, version 2 is not read (4.x) or saves sharded states"
        change = Change({version.written: 2}) if version else Change(added={f"{prefix}version": 2})
        yield Verdict(version, Level.REVIEW, told, "Before 5.10 a missing version meant FSDP1.", change)
        if reshard and strategy_name(reshard.word):
            value = RESHARDS[strategy_name(reshard.word) or ""]
            told = f"{reshard.written}: {reshard.value} becomes {'true' if value else 'false'}"
            yield Verdict(reshard, Level.SAFE, told, change=Change({reshard.written: value}))
        yield from _policy(block)
        if words and words != ["true"] and "auto_wrap" not in words and block.get("auto_wrap_policy") is None:
            told = "the model's layers become units: without auto_wrap, FSDP1 made the whole model one unit"
            yield Verdict(None, Level.REVIEW, told, "Set auto_wrap_policy: NO_WRAP in fsdp_config to keep one unit.")
        added: dict[str, New] = {}
        if "shard_grad_op" in words and reshard is None:
            added[f"{prefix}reshard_after_forward"] = False
        if "offload" in words and block.get("cpu_offload") is None:
            added[f"{prefix}cpu_offload"] = True
        if added:
            told = f"the options in fsdp are written out: {', '.join(added)}"
            yield Verdict(None, Level.SAFE, told, change=Change(added=added))


def _policy(block: Block) -> Iterable[Verdict]:
    least, policy = block.get("min_num_params"), block.get("auto_wrap_policy")
    if policy is not None and policy.word == "SIZE_BASED_WRAP":
        advice = "Use TRANSFORMER_BASED_WRAP, remove min_num_params, and run this tool again."
        yield Verdict(policy, Level.MANUAL, SIZE_FAILS, advice, keeps=True)
    elif least is not None and policy is None:
        change = Change(removed=(least.written,))
        if least.word in ("0", "NONE"):
            told = f"{least.written} is removed: FSDP2 does not read it without a wrap policy"
            yield Verdict(least, Level.SAFE, told, change=change)
        else:
            told = "assumes the model's layers may be the units: FSDP2 has no units by size if a model has ModuleLists"
            yield Verdict(least, Level.REVIEW, told, "Compare the peak memory: the numbers are the same.", change)
