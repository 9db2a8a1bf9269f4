"""Rule for verl's ``strategy`` where a Python program sets it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.file.once import once
from fsdp_rules.hosts._values import literal
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

_ROLES = ("actor", "ref", "critic", "reward_model", "reward")
_ROLE = "|".join(_ROLES)
#: The end of a name, an attribute or a subscript: ``config.critic["strategy"]``.
_TARGET = re.compile(rf"(?:^|[.\"'])({_ROLE})[\"'\]]*(?:\.|\[[\"'])strategy(?:[\"']\])?$")
_PATH = re.compile(rf"^(?:[\w.]+\.)?({_ROLE})\.strategy$")
_OVERRIDE = re.compile(rf"(?:^|[\s'\"+])(?:actor_rollout_ref\.(actor|ref)|({_ROLE}))\.strategy=[\"']?fsdp(?!\w)")
_YAML = re.compile(r"^\s*strategy:\s*[\"']?fsdp(?!\w)", re.MULTILINE)
_ADVICE = 'Write "fsdp2" for every role. verl has it since 0.4; add it to an older fork first.'


class VerlSettings(Rule):
    """verl's `strategy` in a Python program.

    `"fsdp"` is FSDP1 for verl. A program may set it by an assignment (`config.critic.strategy = "fsdp"`), with
    `OmegaConf.update`, in a dictionary, in a Hydra override or a command, in a YAML string, or as an argument of verl's
    own classes. Each role has its own strategy. It is reported and not changed, because the same program may read it.
    """

    id = "FSDP559"
    is_wrap = True
    name = "verl-settings"
    alone = (r"actor_rollout_ref|\bverl\b",)
    spelled = ("actor_rollout_ref", "verl.")
    what_to_test = HOSTED
    visits = (cst.Call, cst.Assign, cst.Dict, cst.SimpleString, cst.ConcatenatedString, cst.FormattedString)
    shim = True
    before = """
from verl.trainer.main_ppo import run_ppo

def main(config):
    config.actor_rollout_ref.actor.strategy = "fsdp"
    run_ppo(config)
"""
    after = """
from verl.trainer.main_ppo import run_ppo

def main(config):
    # TODO(fsdp-migrate FSDP559): strategy of actor is "fsdp" here, which is FSDP1
    config.actor_rollout_ref.actor.strategy = "fsdp"
    run_ppo(config)
"""

    def visit(
        self,
        node: cst.Call | cst.Assign | cst.Dict | cst.SimpleString | cst.ConcatenatedString | cst.FormattedString,
        file: File,
    ) -> Iterable[Diagnosis]:
        """Everything that gives a role its strategy."""
        if not _is_about_verl(file.module, file):
            return
        for role in dict.fromkeys(_roles(node, file)):
            yield Diagnosis(node, Level.MANUAL, f'strategy of {role} is "fsdp" here, which is FSDP1', _ADVICE)


@once
def _is_about_verl(_: cst.Module, file: File) -> bool:
    return re.search(VerlSettings.alone[0], file.text) is not None


def _roles(node: cst.CSTNode, file: File) -> Iterator[str]:
    if isinstance(node, cst.Assign):
        found = [_TARGET.search(file.code(target.target)) for target in node.targets]
        yield from (match[1] for match in found if match and _is_one(node.value, file))
    elif isinstance(node, cst.Dict):
        for item in node.elements:
            inner = file.value(item.value)
            if key_of(item) in _ROLES and isinstance(inner, cst.Dict):
                given = [one.value for one in inner.elements if key_of(one) == "strategy"]
                yield from (str(key_of(item)) for value in given if _is_one(value, file))
    elif isinstance(node, cst.Call):
        yield from _of_call(node, file)
    elif not isinstance(file.parent(node), cst.Expr | cst.ConcatenatedString):
        value = node.evaluated_value if isinstance(node, cst.SimpleString | cst.ConcatenatedString) else None
        text = value if isinstance(value, str) else file.code(node)
        yield from (match[1] or match[2] for match in _OVERRIDE.finditer(text))
        if "actor_rollout_ref" in text and _YAML.search(text):
            yield "a role"


def _of_call(node: cst.Call, file: File) -> Iterator[str]:
    if (file.resolved(node.func) or "").startswith("verl."):
        given = [one.value for one in node.args if key_of(one) == "strategy"]
        yield from (file.code(node.func).rpartition(".")[2] for value in given if _is_one(value, file))
    for holder, path, value in zip(node.args, node.args[1:], node.args[2:], strict=False):
        text = literal(path.value, file).plain
        where = f"{file.code(holder.value)}.strategy" if text == "strategy" else str(text)
        match = _PATH.search(where) or _TARGET.search(where)
        if match and _is_one(value.value, file):
            yield match[1]


def _is_one(node: cst.BaseExpression, file: File) -> bool:
    return literal(node, file).plain == "fsdp"
