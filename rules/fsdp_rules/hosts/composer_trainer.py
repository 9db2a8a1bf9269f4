"""Rule for Composer's configuration in Python."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.configuration.block import Block, NoEditor, Setting
from fsdp_rules.configuration.composer_config import COMPOSER
from fsdp_rules.configuration.judge import judge
from fsdp_rules.configuration.launched import PYTHON
from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.hosts._values import literal, literal_code
from fsdp_rules.settings import LINE_LENGTH
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

_TRAINERS = ("composer.Trainer", "composer.trainer.Trainer", "composer.trainer.trainer.Trainer")
_NEWER = "assumes Composer 0.31 or newer, which has FSDP2Config"


class ComposerTrainer(Rule):
    """`parallelism_config={"fsdp": {...}}` of Composer's `Trainer`.

    The dictionary means FSDP1 unless the environment sets `FSDP_VERSION=2`. It becomes an `FSDP2Config`, which means
    FSDP2 in any environment, by the same table as a file (FSDP532). A dictionary is kept if the file does not contain
    all of it, or if it needs something that `FSDP2Config` does not have.
    """

    id = "FSDP557"
    is_wrap = True
    name = "composer-trainer"
    alone = (r"parallelism_config|fsdp_config",)
    spelled = ("parallelism_config",)
    what_to_test = HOSTED
    visits = (cst.Call,)
    shim = True
    before = """
from composer import Trainer
from composer.utils import FSDP2Config

config = {"fsdp": {"sharding_strategy": "SHARD_GRAD_OP"}}
trainer = Trainer(model=model, parallelism_config=config)
"""
    after = """
from composer import Trainer
from composer.utils import FSDP2Config

config = {"fsdp": FSDP2Config(reshard_after_forward=False, state_dict_type="full")}
trainer = Trainer(model=model, parallelism_config=config)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Calls of the Trainer with the argument."""
        if file.resolved(node.func) not in _TRAINERS:
            return
        for argument in node.args:
            value = file.value(argument.value)
            if key_of(argument) == "fsdp_config" and not is_none(value):
                yield _kept(argument.value, "fsdp_config is for FSDP1 only")
            elif key_of(argument) == "parallelism_config" and isinstance(value, cst.Dict):
                inner = {key_of(one): one.value for one in value.elements}
                if "fsdp" in inner and not is_none(inner["fsdp"]):
                    yield from self._moved(inner["fsdp"], file)
            elif key_of(argument) == "parallelism_config" and not is_none(value) and not isinstance(value, cst.Call):
                yield _kept(argument.value, "this tool cannot see its parallelism_config")

    def _moved(self, given: cst.BaseExpression, file: File) -> Iterable[Diagnosis]:
        config = file.value(given)
        if isinstance(config, cst.Call):
            return
        if not isinstance(config, cst.Dict) or any(key_of(one) is None for one in config.elements):
            yield _kept(given, "this tool cannot see all keys of its dictionary")
            return
        if isinstance(given, cst.Name) and len(file.uses(given.value)) > 1:
            yield _kept(given, f"{given.value} is used in other places as well")
            return
        nodes = {key_of(one) or "": one.value for one in config.elements}
        settings: dict[str, Setting] = {}
        for place, (name, value) in enumerate(nodes.items()):
            known = literal(value, file)
            plain = known.plain if known.known else file.code(value)
            settings[name] = Setting(name, name, plain, place, place)
        said, change = judge(Block(COMPOSER, PYTHON, settings, {}, (0, 0), NoEditor()), lambda rule, verdict: True)
        told = [verdict for _, verdict in said]
        blocked = [verdict for verdict in told if verdict.keeps or verdict.level is Level.MANUAL]
        if blocked:
            for verdict in blocked:
                node = nodes[verdict.setting.written] if verdict.setting else given
                yield Diagnosis(node, Level.MANUAL, verdict.message, verdict.advice.rstrip("."))
            return
        new = {change.names.get(name, name): name for name in nodes if name not in change.removed}
        texts = {
            name: literal_code(change.values[old]) if old in change.values else file.code(nodes[old])
            for name, old in new.items()
        }
        texts.update({name: literal_code(value) for name, value in change.added.items()})
        function = file.ref("composer.utils.FSDP2Config")
        parts = [f"{name}={value}" for name, value in texts.items()]
        text = f"{function}({', '.join(parts)})"
        if len(file.code(file.statement(config))) + len(text) - len(file.code(config)) > LINE_LENGTH:
            text = f"{function}(\n" + "".join(f"    {part},\n" for part in parts) + ")"
        yield Diagnosis(given, Level.REVIEW, _NEWER, "Require mosaicml>=0.31", (Replace(config, lambda code: text),))
        for verdict in told:
            if verdict.level is Level.REVIEW:
                node = nodes[verdict.setting.written] if verdict.setting else given
                yield Diagnosis(node, verdict.level, verdict.message, verdict.advice.rstrip("."))


def _kept(node: cst.CSTNode, reason: str) -> Diagnosis:
    told = f"Composer runs FSDP1 here unless the environment says FSDP_VERSION=2, and {reason}"
    advice = 'Write parallelism_config={"fsdp": FSDP2Config(reshard_after_forward=..., state_dict_type="full")}'
    return Diagnosis(node, Level.MANUAL, told, advice)
