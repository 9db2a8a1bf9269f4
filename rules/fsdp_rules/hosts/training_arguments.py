"""Rule for ``fsdp`` and ``fsdp_config`` of transformers' arguments in Python."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.configuration.block import Change
from fsdp_rules.configuration.judge import judge
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.hosts._arguments import CONFIG, GONE, WORDS, Arguments, branches, is_arguments, is_off, with_class_names
from fsdp_rules.hosts._values import literal
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

ARGUMENTS = (WORDS, CONFIG, *GONE)
_STRATEGIES = ("full_shard", "shard_grad_op", "hybrid_shard", "no_shard")


class TrainingArgumentsFsdp(Rule):
    """`fsdp` and `fsdp_config` of `TrainingArguments`, and of classes that extend it.

    Without a version in `fsdp_config` they mean FSDP1 before transformers 5.10 and FSDP2 since then. A dictionary
    literal changes like a JSON file of the Trainer, by the same table (FSDP511, FSDP512): the version is added, and
    keys that FSDP2 does not read are removed. Two arguments that begin with `fsdp_` were removed in 5.0 and move into
    the dictionary. FSDP2 rejects `hybrid_shard` and `no_shard`. Values that are only known at run time are reported,
    and so are defaults in classes that extend the arguments.
    """

    id = "FSDP552"
    is_wrap = True
    name = "training-arguments"
    alone = (r"\bfsdp(_config|_min_num_params|_transformer_layer_cls_to_wrap)?[\"']?\s*[=:]",)
    what_to_test = HOSTED
    visits = (cst.Call, cst.Dict, cst.ClassDef)
    shim = True
    before = """
from transformers import TrainingArguments

arguments = TrainingArguments(
    "out",
    fsdp="full_shard auto_wrap",
    fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "use_orig_params": True},
)
"""
    after = """
from transformers import TrainingArguments

arguments = TrainingArguments(
    "out",
    fsdp="full_shard auto_wrap",
    fsdp_config={"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "version": 2},
)
"""

    def visit(self, node: cst.Call | cst.Dict | cst.ClassDef, file: File) -> Iterable[Diagnosis]:
        """Calls with one of the arguments, dictionaries that hold them, and classes that give them defaults."""
        if isinstance(node, cst.ClassDef):
            yield from self._defaults(node, file)
        else:
            items = node.args if isinstance(node, cst.Call) else node.elements
            given = {name: item.value for item in items if (name := key_of(item)) in ARGUMENTS}
            if any(not is_off(value) for value in given.values()) and self._is_meant(node, given, file):
                yield from self._moved(Arguments.read(node, file), file)

    def _is_meant(self, node: cst.Call | cst.Dict, given: dict[str, cst.BaseExpression], file: File) -> bool:
        if isinstance(node, cst.Call) and (
            is_arguments(node.func, file) or file.code(node.func) in with_class_names(file)
        ):
            return True
        if isinstance(node, cst.Call) and file.code(node.func) != "dict":
            return False
        # A dictionary of somebody's own arguments has none of these words.
        words = [literal(one, file).plain for one in branches(given.get(WORDS, cst.Name("None")))]
        return any(isinstance(word, str) and any(known in word for known in _STRATEGIES) for word in words)

    def _moved(self, arguments: Arguments, file: File) -> Iterable[Diagnosis]:
        place = arguments.place
        told, change = judge(arguments.block, lambda rule, verdict: True)
        said = [verdict for _, verdict in told]
        refused = [verdict for verdict in said if verdict.keeps]
        if arguments.unseen and not refused:
            yield _unseen(arguments, file)
            return
        found = [
            Diagnosis(
                arguments.nodes.get(verdict.setting.written, place) if verdict.setting else place,
                verdict.level,
                verdict.message,
                verdict.advice.rstrip("."),
            )
            for verdict in (refused or said)
        ]
        if arguments.gone and not refused:
            message = f"{arguments.gone[0]} moves into fsdp_config: transformers 5.0 has no such argument"
            found.append(Diagnosis(arguments.given[arguments.gone[0]], Level.SAFE, message))
        if found and not refused and (change != Change() or arguments.gone):
            edits = tuple(Replace(node, build) for node, build in arguments.edits(change, file))
            first = found[0]
            found[0] = Diagnosis(first.node, first.level, first.message, first.advice, edits)
        yield from found

    def _defaults(self, node: cst.ClassDef, file: File) -> Iterable[Diagnosis]:
        if not any(is_arguments(base.value, file) for base in node.bases):
            return
        for line in node.body.body:
            for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
                if not isinstance(small, cst.AnnAssign) or not isinstance(small.target, cst.Name) or not small.value:
                    continue
                text = file.code(small.value)
                if small.target.value in ARGUMENTS and any(word in text for word in (*_STRATEGIES, "{")):
                    told = (
                        f"this default of {small.target.value} means FSDP1 before transformers 5.10 and FSDP2 "
                        f"since then"
                    )
                    yield Diagnosis(small, Level.MANUAL, told, _ADVICE)


_ADVICE = (
    'Put "version": 2 into fsdp_config, and write the options of fsdp as "reshard_after_forward" and "cpu_offload".'
)


def _unseen(arguments: Arguments, file: File) -> Diagnosis:
    """What is said of a place that the file does not write out."""
    config = arguments.given.get(CONFIG)
    path = literal(config, file).plain if config is not None else None
    if isinstance(path, str):
        level = Level.INFO if arguments.block.around[WORDS] else Level.MANUAL
        told, advice = f"{path} sets the FSDP version", "Run this tool on that file, too"
        return Diagnosis(arguments.place, level, told, advice)
    told = "without a version this is FSDP1 before transformers 5.10 and FSDP2 from 5.10 on"
    return Diagnosis(arguments.place, Level.MANUAL, told, f"{_ADVICE.rstrip('.')}: {arguments.unseen}")
