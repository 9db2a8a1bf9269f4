"""Rule for axolotl's ``fsdp_version`` and ``fsdp_config``."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, Setting, Verdict
from fsdp_rules.configuration.config_checkpointing import NO_DROPOUT
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.config_units import SIZE_FAILS
from fsdp_rules.configuration.keys import is_on, removed, unknown, written_twice
from fsdp_rules.configuration.trainer_version import trainer_is_fsdp2
from fsdp_rules.frameworks.table import table
from fsdp_rules.verdict.finding import Level

AXOLOTL = "axolotl"
_AGAIN = "Change it, or keep fsdp_version: 1, and run this tool again."


class AxolotlVersion(ConfigRule):
    """axolotl's `fsdp_version` and `fsdp_config`.

    axolotl runs FSDP1 unless `fsdp_version` is 2. It reads no strategy from `fsdp_config`: the options in `fsdp` choose
    it. The key becomes `reshard_after_forward` with the behaviour that runs now. Keys that axolotl never read, or that
    FSDP2 does not have, are removed. A file is kept if axolotl itself refuses the combination under FSDP2 (FSDP533), or
    if accelerate's FSDP2 fails on it.
    """

    id = "FSDP531"
    name = "axolotl-version"
    dialects = (AXOLOTL,)
    file = "axolotl.yaml"
    before = """
base_model: some/model
fsdp_config:
  fsdp_offload_params: false
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_use_orig_params: true
"""
    after = """
base_model: some/model
fsdp_config:
  fsdp_offload_params: false
  fsdp_reshard_after_forward: true
fsdp_version: 2
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """The switch, the keys that go, and what axolotl refuses."""
        known = table(AXOLOTL).keys
        for setting in block.settings.values():
            if setting.name not in known:
                yield unknown(setting, AXOLOTL, known)
        yield from written_twice(block.others, known)
        if trainer_is_fsdp2(block):
            for setting in block.settings.values():
                if setting.name in known and known[setting.name].verdict == "dead":
                    told = f"{setting.written} has no effect: fsdp_version is 2 here"
                    if setting.word == "FULL_SHARD" or setting.name != "sharding_strategy":
                        yield Verdict(setting, Level.SAFE, told, change=Change(removed=(setting.written,)))
                    else:
                        yield Verdict(setting, Level.MANUAL, told, "Use reshard_after_forward, or remove the key.")
            return
        yield from self._refused(block)
        yield self._switch(block)
        for setting in block.settings.values():
            verdict = known[setting.name].verdict if setting.name in known else ""
            if setting.name == "sharding_strategy":
                yield self._strategy(block, setting)
            elif verdict == "dead":
                change = Change(removed=(setting.written,))
                yield Verdict(setting, Level.SAFE, f"{setting.written} is never read by axolotl", change=change)
            elif verdict == "removed" and not self._is_asked_for(block, setting):
                yield removed(setting, "", broadcasts=is_on(block, "cpu_ram_efficient_loading"))
        checkpointing = block.get("activation_checkpointing")
        if checkpointing and checkpointing.is_true and not block.around.get("lora_dropout"):
            yield Verdict(checkpointing, Level.REVIEW, *NO_DROPOUT)

    def _switch(self, block: Block) -> Verdict:
        inner = block.around["inner"]
        values = {str(inner): 2} if inner else {}
        beside = {} if inner and block.around["version"] is None else {"fsdp_version": 2}
        return Verdict(None, Level.SAFE, "FSDP1 becomes FSDP2", change=Change(values, beside=beside))

    def _refused(self, block: Block) -> Iterable[Verdict]:
        words, told = str(block.around["fsdp"] or "").lower(), []
        policy, state = block.get("auto_wrap_policy"), block.get("state_dict_type")
        if any(word in words for word in ("hybrid_shard", "no_shard")):
            told.append(f"transformers' FSDP2 refuses fsdp: {words} with ValueError")
        if state and state.word == "LOCAL_STATE_DICT":
            told.append("LOCAL_STATE_DICT does not exist in FSDP2, and accelerate raises ValueError")
        if policy and policy.word == "SIZE_BASED_WRAP":
            told.append(SIZE_FAILS)
        checkpointing = block.get("activation_checkpointing")
        if checkpointing and checkpointing.is_true and block.around["lora_dropout"]:
            told.append("lora_dropout is on, and FSDP2 recomputes layers with a different dropout mask")
        for one in told:
            yield Verdict(None, Level.MANUAL, one, _AGAIN, keeps=True)

    def _strategy(self, block: Block, setting: Setting) -> Verdict:
        new = setting.written.replace("sharding_strategy", "reshard_after_forward")
        ran = "shard_grad_op" not in str(block.around["fsdp"] or "").lower()
        reshard = block.get("reshard_after_forward")
        change = Change({setting.written: ran}, {setting.written: new})
        if reshard:
            change = Change(removed=(setting.written,))
        name = "FULL_SHARD" if ran else "SHARD_GRAD_OP"
        if setting.word == name:
            told = f"{setting.written}: {setting.value} becomes {new}: {str(ran).lower()}"
            return Verdict(setting, Level.SAFE, told, change=change)
        told = f"{setting.written}: {setting.value} was never read, and {name} ran: now {new}: {str(ran).lower()}"
        return Verdict(setting, Level.REVIEW, told, "Change the value if you meant something else.", change)

    def _is_asked_for(self, block: Block, setting: Setting) -> bool:
        return setting.name == "use_orig_params" and str(block.around["optimizer"]).startswith("q_galore")
