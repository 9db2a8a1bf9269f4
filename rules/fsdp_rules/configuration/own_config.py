"""Rule for settings that a project reads itself."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.verdict.finding import Level


class OwnConfig(ConfigRule):
    """FSDP settings that only the project's own code reads.

    `fully_shard` has no strategy names, so the file and the code that reads it must change together: hybrid strategies
    become a mesh, and SHARD_GRAD_OP becomes `reshard_after_forward=False`. If the code looks the name up in
    `ShardingStrategy`, or if `fsdp_compat` accepts it (`--to shim`), it gets only a note. FSDP1 arguments without a
    counterpart in FSDP2 (`limit_all_gathers`, `use_orig_params`, prefetching, `sync_module_states`) get one note each.
    So does any key or flag that the project's Python code passes to such an argument: by attribute, subscript, `get`,
    `getattr` or `OmegaConf.select`, directly or through dictionaries, names, attributes of `self` and function
    parameters in any file. Other keys with FSDP in their name get one note per file. There is no note if the project's
    Python shards only with FSDP2.
    """

    id = "FSDP542"
    name = "own-config"
    dialects = ("own",)
    file = "train.yaml"
    before = """
model: small
sharding_strategy: hybrid_full
"""
    after = before

    def visit(self, block: Block) -> Iterable[Verdict]:
        """A strategy's name, or the first key of the file."""
        if block.shards_natively:
            return
        key, value = block.around["key"], block.around["value"]
        if where := block.around.get("where"):
            told = f"{where} passes {key} to {block.around['argument']}, which FSDP2 does not have"
            yield Verdict(None, Level.INFO, told, "Remove it together with the code that reads it.")
            return
        if block.around.get("dead"):
            told = f"{key} has no effect under FSDP2, which has no such argument"
            yield Verdict(None, Level.INFO, told, "Remove it together with the code that reads it.")
            return
        if value is None:
            told = f"the project's own code reads {key}, which is not a key of a framework that this tool knows"
            yield Verdict(None, Level.INFO, told, "Check it together with the code that reads it.")
            return
        if value in block.strategy_names:
            told = f"{key}: {value} is read by code that still accepts these names after a rewrite"
            yield Verdict(None, Level.INFO, told, "If you change it, change that code too.")
            return
        yield Verdict(
            None,
            Level.MANUAL,
            f"{key}: {value} is a strategy of FSDP1 that the project's own code reads",
            "Change it together with that code: reshard_after_forward, and a mesh for the hybrid strategies.",
        )
