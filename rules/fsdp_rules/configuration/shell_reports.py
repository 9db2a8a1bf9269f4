"""Rule for what shell scripts tell frameworks in ways that are only reported."""

from __future__ import annotations

from collections.abc import Iterable

from fsdp_rules.configuration.block import Block, Change, Verdict
from fsdp_rules.configuration.config_rule import ConfigRule
from fsdp_rules.configuration.trainer_version import TRAINER
from fsdp_rules.verdict.finding import Level

_LAYERS = "fsdp_transformer_layer_cls_to_wrap"
_GONE = (_LAYERS, "fsdp_min_num_params")


class ShellReports(ConfigRule):
    """FSDP1 in shell scripts (Trainer flags, `FSDP_*` variables, YAML in a heredoc).

    `--fsdp "full_shard auto_wrap"` means FSDP1 before transformers 5.10 and FSDP2 since then. If the command contains
    the options literally, and any settings as JSON in single quotes, it is migrated like a file of the Trainer
    (FSDP511, FSDP512): `--fsdp_config` states the version and replaces the options. The flags
    `--fsdp_transformer_layer_cls_to_wrap` and `--fsdp_min_num_params` are errors since transformers 5.0 and move into
    it. Options built from variables and settings in a separate file are reported. `FSDP_*` variables without
    `FSDP_VERSION=2` mean FSDP1 and are reported, like a heredoc with a configuration.
    """

    id = "FSDP513"
    name = "shell-settings"
    dialects = ("trainer flags", "transformers", "variables", "heredoc")
    file = "train.sh"
    before = """
torchrun --nproc_per_node 8 train.py \\
    --fsdp "shard_grad_op auto_wrap" \\
    --fsdp_transformer_layer_cls_to_wrap Block \\
    --bf16 False
"""
    after = """
torchrun --nproc_per_node 8 train.py \\
    --fsdp "shard_grad_op auto_wrap" \\
    --fsdp_config '{"transformer_layer_cls_to_wrap": ["Block"], "version": 2, "reshard_after_forward": false}' \\
    --bf16 False
"""

    def visit(self, block: Block) -> Iterable[Verdict]:
        """One finding for the flags of a command, for a script's variables, and for each heredoc."""
        if block.dialect == TRAINER:
            yield from self._moved(block)
        elif block.dialect == "trainer flags":
            yield from self._flags(block)
        elif block.dialect == "heredoc" and block.around["version"] != "2":
            told = "this heredoc writes a configuration for FSDP1, which is not changed here"
            yield Verdict(None, Level.MANUAL, told, "Move it to a file and run this tool on that file.")
        elif block.dialect == "variables" and block.around["composer"]:
            if str(block.value("fsdp_version")) != "2":
                told = "this variable makes Composer run FSDP1, whatever fsdp_config says"
                advice = "Run this tool on the YAML file first, then set FSDP_VERSION=2."
                yield Verdict(block.get("fsdp_version"), Level.MANUAL, told, advice)
        elif block.dialect == "variables" and str(block.value("fsdp_version")) != "2":
            told = "these variables make accelerate run FSDP1: FSDP_VERSION is 1 by default"
            advice = "Set FSDP_VERSION=2 and FSDP_RESHARD_AFTER_FORWARD, and FSDP_STATE_DICT_TYPE if it is absent."
            yield Verdict(None, Level.MANUAL, told, advice)

    def _moved(self, block: Block) -> Iterable[Verdict]:
        """The flags that are gone, in a command whose settings this tool migrates."""
        layers = block.get(_LAYERS.removeprefix("fsdp_"))
        if block.form == "flags" and layers is not None and layers.written == _LAYERS:
            told = f"--{_LAYERS} moves into --fsdp_config: transformers 5.0 has no such flag"
            change = Change(names={_LAYERS: layers.name})
            yield Verdict(layers, Level.SAFE, told, change=change)

    def _flags(self, block: Block) -> Iterable[Verdict]:
        words, config = block.get("fsdp"), block.get("fsdp_config")
        if block.form == "composed":
            told = "--fsdp is built at run time here; without a version it means FSDP1 before transformers 5.10"
            yield Verdict(None, Level.MANUAL, told, _ADVICE)
            return
        for name in _GONE:
            setting = block.get(name)
            if setting is not None:
                advice = "Write --fsdp_config '{\"transformer_layer_cls_to_wrap\": [...]}', or a file."
                told = f"--{name} is an error since transformers 5.0"
                yield Verdict(setting, Level.MANUAL, told, advice)
        for word in ("hybrid_shard", "no_shard"):
            if words and word in str(words.value).lower():
                told = f"transformers' FSDP2 refuses {word} with ValueError"
                yield Verdict(words, Level.MANUAL, told, 'Set "version": 1 in fsdp_config, or use full_shard.')
                return
        if config and "version" in str(config.value):
            return
        if config and str(config.value).endswith(".json"):
            told = f"{config.value} sets the FSDP version"
            yield Verdict(config, Level.INFO, told, "Run this tool on that file, too.")
            return
        told = "without a version this is FSDP1 before transformers 5.10 and FSDP2 from 5.10 on"
        yield Verdict(words or config, Level.MANUAL, told, _ADVICE)


_ADVICE = 'Write --fsdp --fsdp_config \'{"version": 2, "reshard_after_forward": true, ...}\' for transformers 5.10.'
