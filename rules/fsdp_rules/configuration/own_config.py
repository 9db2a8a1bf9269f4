"""Rule for settings that a project reads itself."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.fsdp1.strategy_names import NAMES
from fsdp_rules.verdict.finding import Level


class OwnConfig(ConfigRule):
    """FSDP settings that only the project's own code reads.

    The name of a strategy means nothing to `fully_shard`, so that the code that reads it and the file have to change
    together: hybrid strategies become a mesh, SHARD_GRAD_OP becomes `reshard_after_forward=False`. A name of FSDP1's
    own that the code looks up in `ShardingStrategy`, or `fsdp_compat` takes (`--to shim`), is a note. Arguments of
    FSDP1 that FSDP2 has nothing for (`limit_all_gathers`, `use_orig_params`, prefetching, `sync_module_states`) get a
    note each, and so do keys and flags of any other name that the project's Python gives to such an argument: by
    attribute, subscript, `get`, `getattr` or `OmegaConf.select`, in the call, in a dictionary, through a name, an
    attribute of `self`, or parameters of functions in any file. Other keys with FSDP in their name get one for each
    file. Nothing is said where the project's Python shards with FSDP2 alone.
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
            told = f"{where} gives {key} to {block.around['argument']}, which FSDP2 does not have"
            yield Verdict(None, Level.INFO, told, "Remove it together with the code that reads it.")
            return
        if block.around.get("dead"):
            told = f"{key} means nothing under FSDP2, which has no such argument"
            yield Verdict(None, Level.INFO, told, "Remove it together with the code that reads it.")
            return
        if value is None:
            told = f"the project's own code reads {key}, which is not a key of a framework that this tool knows"
            yield Verdict(None, Level.INFO, told, "Look at it together with the code that reads it.")
            return
        if block.looks_up_strategies and value in NAMES:
            told = f"{key}: {value} is read by code that takes the same names after a rewrite"
            yield Verdict(None, Level.INFO, told, "Change it together with that code, if at all.")
            return
        yield Verdict(
            None,
            Level.MANUAL,
            f"{key}: {value} is a strategy of FSDP1 that the project's own code reads",
            "Change it together with that code: reshard_after_forward, and a mesh for the hybrid strategies.",
        )
