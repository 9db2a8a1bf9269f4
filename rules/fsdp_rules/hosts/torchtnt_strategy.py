"""Rule for torchtnt's ``FSDPStrategy``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.configuration.config_strategy import RESHARDS, strategy_name
from fsdp_rules.configuration.keys import ELEMENTWISE, NOT_BROADCAST
from fsdp_rules.file.expressions import is_none, literal_bool
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.file.printing import line_with
from fsdp_rules.hosts._imported import renamed_import
from fsdp_rules.hosts._values import layer_classes, literal, offload, precision
from fsdp_rules.settings import LINE_LENGTH
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

MODULE = "torchtnt.utils.prepare_module"
_NAMES = (f"{MODULE}.FSDPStrategy", "torchtnt.utils.FSDPStrategy")
#: Arguments that FSDP2Strategy does not have and that change no number.
_GONE = ("backward_prefetch", "forward_prefetch", "limit_all_gathers", "use_orig_params", "sync_module_states")
_NEWER = "assumes a torchtnt newer than release 0.2.4, with FSDP2Strategy"


class TorchtntStrategy(Rule):
    """torchtnt's `FSDPStrategy`.

    It becomes `FSDP2Strategy`: the classes of the wrap policy are `modules_to_shard`, the strategy is
    `reshard_after_forward`, `MixedPrecision` is `MixedPrecisionPolicy`. torchtnt refuses to shard a model without
    `modules_to_shard`, so a call without a policy of classes is kept. A call with arguments that have no counterpart is
    kept too.
    """

    id = "FSDP555"
    is_wrap = True
    name = "torchtnt-strategy"
    alone = (r"FSDPStrategy",)
    what_to_test = HOSTED
    visits = (cst.Call,)
    shim = True
    before = """
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torchtnt.utils.prepare_module import FSDPStrategy

from layers import Block

strategy = FSDPStrategy(
    sharding_strategy="SHARD_GRAD_OP",
    auto_wrap_policy=ModuleWrapPolicy({Block}),
    use_orig_params=True,
)
"""
    after = """
from torchtnt.utils.prepare_module import FSDP2Strategy

from layers import Block

strategy = FSDP2Strategy(
    modules_to_shard=[Block],
    reshard_after_forward=False,
)
"""

    def visit(self, node: cst.Call, file: File) -> Iterable[Diagnosis]:
        """Calls of the class."""
        if file.resolved(node.func) not in _NAMES:
            return
        given = {key_of(one): one.value for one in node.args}
        arguments = {name: value for name, value in given.items() if name and not is_none(file.value(value))}
        texts: dict[str, str] = {}
        reason = "" if None not in given else "its arguments are not all named here"
        imported = renamed_import(node, (MODULE,), "FSDPStrategy", "FSDP2Strategy", file)
        if imported is None and not reason:
            reason = "its name is used in other places"
        reason = reason or self._read(dict(arguments), texts, file)
        if reason or imported is None:
            told = f"torchtnt's FSDPStrategy is FSDP1, and {reason}"
            advice = "Write FSDP2Strategy(modules_to_shard=[...], reshard_after_forward=..., mp_policy=...)"
            yield Diagnosis(node, Level.MANUAL, told, advice)
            return
        name, renamed = imported
        parts = [f"{key}={text}" for key, text in texts.items()]
        text = f"{name}({', '.join(parts)})"
        if "\n" in file.code(node) or line_with(text, node, False, file) > LINE_LENGTH:
            text = f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + ")"
        gone = tuple(
            (binding.statement, value.value)
            for value in given.values()
            if isinstance(value, cst.Name) and (binding := file.binding(value)) is not None
        )
        edits: tuple[Edit, ...] = (Replace(node, lambda code: text), *renamed)
        yield Diagnosis(node, Level.REVIEW, _NEWER, "Use torchtnt's main branch", edits, consumes=gone)
        yield from self._assumed(node, arguments, file)

    def _read(self, arguments: dict[str, cst.BaseExpression], texts: dict[str, str], file: File) -> str:
        """Puts the new arguments into ``texts``; why the call is kept, empty if it is not."""
        layers = layer_classes(arguments.pop("auto_wrap_policy", None), file)
        if layers is None:
            return "FSDP2Strategy needs modules_to_shard, and no policy here lists classes"
        texts["modules_to_shard"] = layers
        if "sharding_strategy" in arguments:
            name = _strategy(arguments["sharding_strategy"], file)
            if name not in ("FULL_SHARD", "SHARD_GRAD_OP"):
                return f"{name or 'a strategy that is only known at run time'} has no FSDP2Strategy"
            texts["reshard_after_forward"] = str(RESHARDS[name])
        if "mixed_precision" in arguments:
            policy = precision(arguments["mixed_precision"], file)
            if not policy.text:
                return "this tool cannot see the dtypes of its mixed_precision"
            texts["mp_policy"] = policy.text
        if "cpu_offload" in arguments:
            flag = offload(arguments["cpu_offload"], file)
            if flag.fixed:
                return "its cpu_offload is only known at run time"
            texts["cpu_offload"] = flag.text or repr(flag.plain)
        taken = {"sharding_strategy", "mixed_precision", "cpu_offload", *_GONE}
        left = [name for name in arguments if name not in taken]
        return f"FSDP2Strategy has no {left[0]}" if left else ""

    def _assumed(self, node: cst.Call, arguments: dict[str, cst.BaseExpression], file: File) -> Iterator[Diagnosis]:
        original, synced = arguments.get("use_orig_params"), arguments.get("sync_module_states")
        if original is None or literal_bool(file.value(original)) is not True:
            yield Diagnosis(node, Level.REVIEW, ELEMENTWISE[0], "compare the losses of the first steps")
        if synced is not None and literal_bool(file.value(synced)) is not False:
            yield Diagnosis(node, Level.REVIEW, NOT_BROADCAST[0], "use the same seed on every rank, or broadcast first")


def _strategy(node: cst.BaseExpression, file: File) -> str | None:
    value = literal(node, file)
    return strategy_name(str(value.plain).upper()) if value.known else None
