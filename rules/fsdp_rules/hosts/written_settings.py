"""Rule for a framework's settings in the strings, dictionaries and variables of a Python program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import libcst as cst

from fsdp_rules.file.expressions import called_on, given_to
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.hosts._values import literal
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

_YAML = re.compile(r"distributed_type\W+FSDP\b")
_TWO = re.compile(r"fsdp_version\W+2\b")
_LAUNCHES = re.compile(r"\b(accelerate|torchrun|python3?|deepspeed)\b.*\s")
_FLAGS = re.compile(r"--(use_fsdp\b|fsdp_sharding_strategy\b|fsdp_auto_wrap_policy\b)")
_STRATEGY = r"(full_shard|shard_grad_op|hybrid_shard|no_shard)"
_WORDS = re.compile(rf"--fsdp[\s=]\W*{_STRATEGY}")
_VARIABLES = ("ACCELERATE_USE_FSDP", "FSDP_SHARDING_STRATEGY")
_TO_A_FILE = "Move it to a file, run this tool on that file, and have the program read it"


class WrittenSettings(Rule):
    """accelerate's and the Trainer's settings that a program writes itself.

    These settings run FSDP1 unless they set version 2: YAML in a string or as a dictionary, commands in strings and
    lists with `--use_fsdp` or the Trainer's `--fsdp`, and `os.environ["FSDP_SHARDING_STRATEGY"]`. The program builds
    this text at run time, so it is reported and not changed. Documentation is not searched.
    """

    id = "FSDP558"
    is_wrap = True
    name = "written-settings"
    alone = (r"fsdp_config|--use_fsdp|--fsdp\b|--fsdp_|ACCELERATE_USE_FSDP|FSDP_SHARDING_STRATEGY",)
    spelled = ("--use_fsdp", "--fsdp", "fsdp_config", *_VARIABLES)
    what_to_test = HOSTED
    visits = (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString, cst.Dict, cst.List, cst.Assign)
    shim = True
    before = '''
CONFIG = """
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
"""
'''
    after = '''
# TODO(fsdp-migrate FSDP558): this string contains accelerate settings that run FSDP1
CONFIG = """
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
"""
'''

    def visit(
        self,
        node: cst.SimpleString | cst.ConcatenatedString | cst.FormattedString | cst.Dict | cst.List | cst.Assign,
        file: File,
    ) -> Iterable[Diagnosis]:
        """Strings, dictionaries, lists of arguments, and variables of the environment that are set."""
        if isinstance(node, cst.Dict):
            yield from self._dictionary(node, file)
        elif isinstance(node, cst.List):
            yield from self._words([one.value for one in node.elements], file)
        elif isinstance(node, cst.Assign):
            yield from self._variable(node, file)
        elif not isinstance(file.parent(node), cst.Expr | cst.ConcatenatedString):
            yield from self._string(node, file)

    def _string(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        value = node.evaluated_value if isinstance(node, cst.SimpleString | cst.ConcatenatedString) else None
        text = value if isinstance(value, str) else file.code(node)
        if "fsdp_config" in text and _YAML.search(text) and not _TWO.search(text):
            yield Diagnosis(node, Level.MANUAL, "this string contains accelerate settings that run FSDP1", _TO_A_FILE)
        elif _LAUNCHES.search(text) and _FLAGS.search(text) and "accelerate" in text and not _TWO.search(text):
            yield Diagnosis(node, Level.MANUAL, "this command makes accelerate run FSDP1", _FLAG_ADVICE)
        elif _LAUNCHES.search(text) and _WORDS.search(text) and "version" not in text:
            yield Diagnosis(node, Level.MANUAL, _UNVERSIONED, _CONFIG_ADVICE)
        elif (
            text.strip(" \\\n\t") == "--use_fsdp"
            and _is_appended(node, file)
            and not _TWO.search(file.code(file.layout.module))
        ):
            yield Diagnosis(node, Level.MANUAL, "this command makes accelerate run FSDP1", _FLAG_ADVICE)

    def _dictionary(self, node: cst.Dict, file: File) -> Iterable[Diagnosis]:
        given = {key_of(one): one.value for one in node.elements}
        kind = given.get("distributed_type")
        config = file.value(given["fsdp_config"]) if "fsdp_config" in given else None
        if kind is None or config is None or literal(kind, file).plain != "FSDP" or _TWO.search(file.code(config)):
            return
        told = "this dictionary contains accelerate settings that run FSDP1"
        yield Diagnosis(node, Level.MANUAL, told, _TO_A_FILE)

    def _words(self, items: Sequence[cst.BaseExpression], file: File) -> Iterable[Diagnosis]:
        texts = [literal(one, file).plain if isinstance(one, cst.SimpleString) else None for one in items]
        if "--use_fsdp" in texts and not _TWO.search(" ".join(map(str, texts))):
            yield Diagnosis(
                items[texts.index("--use_fsdp")], Level.MANUAL, "this command makes accelerate run FSDP1", _FLAG_ADVICE
            )
        for index, text in enumerate(texts[:-1]):
            if text == "--fsdp" and re.match(_STRATEGY, str(texts[index + 1])) and "--fsdp_config" not in texts:
                yield Diagnosis(items[index + 1], Level.MANUAL, _UNVERSIONED, _CONFIG_ADVICE)

    def _variable(self, node: cst.Assign, file: File) -> Iterable[Diagnosis]:
        for target in node.targets:
            text = file.code(target.target)
            name = next((one for one in _VARIABLES if re.search(rf"environ\[[\"']{one}[\"']\]$", text)), None)
            off = (
                str(literal(node.value, file).plain).lower() in ("false", "0", "none")
                and literal(node.value, file).known
            )
            if name is not None and not off and not re.search(r"FSDP_VERSION\W+2\b", file.code(file.layout.module)):
                told = f"{name} makes accelerate run FSDP1: FSDP_VERSION is 1 by default"
                advice = "Set FSDP_VERSION to 2, FSDP_RESHARD_AFTER_FORWARD, and FSDP_STATE_DICT_TYPE if it is absent"
                yield Diagnosis(node, Level.MANUAL, told, advice)


def _is_appended(node: cst.CSTNode, file: File) -> bool:
    """Whether a string becomes a part of a command, and is not the name of an option of the program."""
    return called_on(given_to(node, file), "append") is not None


_UNVERSIONED = "without a version this is FSDP1 before transformers 5.10 and FSDP2 from 5.10 on"
_FLAG_ADVICE = "Add --fsdp_version 2 and write --fsdp_reshard_after_forward in place of the strategy"
_CONFIG_ADVICE = 'Add --fsdp_config \'{"version": 2, "reshard_after_forward": true}\' for transformers 5.10'
