"""Rule for methods that look at a model as a whole: ``fsdp_modules``, ``check_is_root``, ``apply``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.expressions import bind, call_of, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.printing import indent
from fsdp_rules.file.tree import Code
from fsdp_rules.fsdp1.names import FSDP
from fsdp_rules.model.sharded import sharded
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace, ReplaceStatement
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT


class FsdpModules(Rule):
    """FSDP.fsdp_modules(), apply() and check_is_root().

    `FSDP.fsdp_modules(model)` silently finds nothing in an FSDP2 model. It becomes the list of all `FSDPModule`s.
    `model.apply(fn)` passed full parameters to the function under FSDP1 and passes shards under FSDP2, so it runs
    inside `fsdp_compat.summon_full_params`, which writes changes back. `check_is_root` has no public FSDP2 form.
    """

    id = "FSDP208"
    name = "fsdp-modules"
    moves_together = True
    what_to_test = EFFECT
    visits = (cst.Call, cst.Attribute)
    before = """
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def count_units(model):
    return len(FSDP.fsdp_modules(model))
"""
    after = """
from torch.distributed.fsdp import FSDPModule

def count_units(model):
    return len([module for module in model.modules() if isinstance(module, FSDPModule)])
"""

    def visit(self, node: cst.Call | cst.Attribute, file: File) -> Iterable[Diagnosis]:
        """Calls on the class, or on a model that is wrapped."""
        if isinstance(node, cst.Attribute):
            if node.attr.value == "apply" and call_of(node, file) is None:
                yield from self._passed_on(node, file)
            return
        if not isinstance(node.func, cst.Attribute):
            return
        method = node.func.attr.value
        static = file.fsdp1(node.func.value) == FSDP
        if method == "fsdp_modules" and (static or sharded(node.func.value, file).certainty is Certainty.YES):
            yield from self._units(node, file)
        elif method == "check_is_root" and (static or (not node.args and "fsdp1" in file.project.flags)):
            yield Diagnosis(
                node,
                Level.MANUAL,
                "FSDP2 has no public function that tests for the root of a sharded model",
                "the root is the module that was passed to fully_shard last: compare with that object",
                claims=(node.func,),
            )
        elif method == "apply" and not is_summoned(node, file):
            yield from self._apply(node, node.func.value, static, file)

    def _passed_on(self, node: cst.Attribute, file: File) -> Iterator[Diagnosis]:
        if not is_summoned(node, file) and sharded(node.value, file).certainty is Certainty.YES:
            yield Diagnosis(
                node,
                Level.MANUAL,
                f"{file.code(node.value)} is sharded: code that this method calls would get shards of its parameters",
                "call it before the model is sharded, or inside fsdp_compat.summon_full_params(model)",
            )

    def _units(self, call: cst.Call, file: File) -> Iterator[Diagnosis]:
        arguments = bind(call, ("module", "root_only"))
        if arguments is None or "module" not in arguments:
            return
        module, root_only = arguments["module"], arguments.get("root_only")
        if root_only is None or literal_bool(root_only) is False:
            unit = file.fresh(call, "module", "unit", "fsdp_module")
            kind = file.ref("torch.distributed.fsdp.FSDPModule")
            yield Diagnosis(
                call,
                Level.SAFE,
                "FSDP2's units are the modules that are FSDPModules, in the same order",
                edits=(
                    Replace(
                        call,
                        lambda code: f"[{unit} for {unit} in {code(module)}.modules() if isinstance({unit}, {kind})]",
                    ),
                ),
                claims=(call.func,),
            )
        elif file.settings.may_help:
            helper = file.ref("fsdp_compat.fsdp_modules")
            yield Diagnosis(
                call,
                Level.SAFE,
                "fsdp_compat finds the outermost units",
                edits=(Replace(call, lambda code: f"{helper}({code(module)}, root_only={code(root_only)})"),),
                claims=(call.func,),
            )
        else:
            yield Diagnosis(
                call,
                Level.MANUAL,
                "needs fsdp_compat.fsdp_modules, but '--helpers never' forbids it",
                "walk model.children() and stop at each FSDPModule",
                claims=(call.func,),
            )

    def _apply(self, call: cst.Call, model: cst.BaseExpression, static: bool, file: File) -> Iterator[Diagnosis]:
        held = Certainty.NO if static else sharded(model, file).certainty
        if held is Certainty.NO:
            return
        name = file.code(model)
        statement = file.statement(call)
        if held is Certainty.MAYBE:
            yield Diagnosis(
                call,
                Level.REVIEW,
                f"if {name} is sharded here, the function gets shards of its parameters instead of full ones",
                "run it before the model is sharded, or inside fsdp_compat.summon_full_params(model)",
            )
        elif file.settings.may_help and isinstance(statement, cst.Expr | cst.Assign) and statement.value is call:
            helper = file.ref("fsdp_compat.summon_full_params")

            def build(code: Code) -> str:
                return f"with {helper}({code(model)}):\n{indent(code(statement))}"

            yield Diagnosis(
                call,
                Level.REVIEW,
                f"the function gets the full parameters of {name}, which are all in memory at once",
                "FSDP1 gathered one unit at a time. If memory is short, run the function before the model is sharded.",
                edits=(ReplaceStatement(statement, build),),
            )
        else:
            yield Diagnosis(
                call,
                Level.MANUAL,
                f"{name} is sharded: the function would get shards of its parameters",
                "run it before the model is sharded, or inside fsdp_compat.summon_full_params(model)",
            )
