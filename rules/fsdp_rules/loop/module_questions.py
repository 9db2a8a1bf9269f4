"""Rule for code that asks whether a model has ``module``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import Asked, asked, is_repeatable
from fsdp_rules.file.file import File
from fsdp_rules.file.tree import Code
from fsdp_rules.loop._not_sharded_yet import is_not_sharded_yet
from fsdp_rules.model.asked_modules import changes
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

#: Where a test needs no parentheses around it.
ALONE = (cst.If, cst.IfExp, cst.Assert, cst.Assign, cst.AnnAssign, cst.Return)


class ModuleQuestions(Rule):
    """hasattr(model, "module").

    FSDP1's wrapper has this attribute, and a model sharded by `fully_shard` does not: `if hasattr(model, "module"):
    save(model.module)` would no longer save anything, and `getattr(model, "module", None)` would return None. The
    rewritten test also accepts a sharded model. The test is unchanged if both branches do the same for the model
    itself, as in `model.module if hasattr(model, "module") else model`, or if it ends a loop that removes wrappers.
    """

    id = "FSDP234"
    name = "module-questions"
    what_to_test = EFFECT
    visits = (cst.Call,)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def report(net):
    model = FSDP(net)
    if hasattr(model, "module"):
        print(model.module)
"""
    after = """
from torch.distributed.fsdp import FSDPModule, fully_shard

def report(net):
    model = fully_shard(net)
    if isinstance(model, FSDPModule) or hasattr(model, "module"):
        print(model)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """A question whose answer changes what runs."""
        question = asked(node)
        if question is None or question.name != "module" or not changes(node, file):
            return
        subject = question.subject
        if sharded(subject, file).certainty is Certainty.NO or is_not_sharded_yet(node, subject, file):
            return
        text = file.code(subject)
        if not is_repeatable(subject) or "module_attribute" in file.project.flags:
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{text} may be the sharded model, which has no .module under FSDP2: this takes another branch",
                f"test isinstance({text}, FSDPModule) as well, and use {text} itself if it is sharded",
            )
            return
        yield Diagnosis(
            node,
            Level.REVIEW,
            f"also tests the class: assumes {text} is the sharded model or a wrapper with .module",
            edits=(Replace(node, lambda code: _counted_in(question, node, code, file)),),
        )


def _counted_in(question: Asked, node: cst.Call, code: Code, file: File) -> str:
    """The question, which a sharded model answers as FSDP1's wrapper did."""
    module, model = file.ref("torch.distributed.fsdp.FSDPModule"), code(question.subject)
    if question.function == "hasattr":
        text = f"isinstance({model}, {module}) or {code(node)}"
        return text if isinstance(file.parent(node), ALONE) else f"({text})"
    if not question.has_default:
        return f'getattr({model}, "module", {model})'
    return f'getattr({model}, "module", {model} if isinstance({model}, {module}) else {code(node.args[2].value)})'
