"""Rule for accelerate's plugin in Python."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.file.expressions import brief
from fsdp_rules.file.file import File
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

PLUGIN = "FullyShardedDataParallelPlugin"
#: What becomes of an argument where FSDP2 takes it differently.
_ADVICE = {
    "sharding_strategy": "sharding_strategy becomes reshard_after_forward=True (False for SHARD_GRAD_OP)",
    "backward_prefetch": "drop backward_prefetch",
    "forward_prefetch": "drop forward_prefetch, which raises",
    "use_orig_params": "drop use_orig_params",
    "sync_module_states": "drop sync_module_states, or use cpu_ram_efficient_loading=True",
    "limit_all_gathers": "drop limit_all_gathers",
    "param_init_fn": "param_init_fn is ignored",
    "cpu_offload": "cpu_offload takes a bool or CPUOffloadPolicy()",
    "mixed_precision_policy": "mixed_precision_policy takes MixedPrecisionPolicy with output_dtype, not buffer_dtype",
}
#: Arguments that accelerate refuses or ignores under version 2.
_OLD = frozenset(_ADVICE) - {"cpu_offload", "mixed_precision_policy"}


class AcceleratePlugin(Rule):
    """accelerate's `FullyShardedDataParallelPlugin`.

    It runs FSDP1 unless `fsdp_version` or `FSDP_VERSION` says 2. Under version 2 the arguments of FSDP1 are refused
    (`forward_prefetch`, an enum as strategy) or ignored (`limit_all_gathers`, `param_init_fn`), and a callable
    `auto_wrap_policy` is dropped silently, so that only the root is sharded. The default of `state_dict_type` becomes
    SHARDED_STATE_DICT.
    """

    id = "FSDP551"
    name = "accelerate-plugin"
    what_to_test = HOSTED
    visits = (cst.Call,)
    shim = True
    before = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD", use_orig_params=True)
accelerator = Accelerator(fsdp_plugin=plugin)
"""
    after = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin

# TODO(fsdp-migrate FSDP551): this plugin runs FSDP1: fsdp_version is 1 by default
plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD", use_orig_params=True)
accelerator = Accelerator(fsdp_plugin=plugin)
"""

    def visit(self, node: cst.CSTNode, file: File) -> Iterable[Diagnosis]:
        """Calls of the plugin, wherever it is imported from."""
        if not isinstance(node, cst.Call):
            return
        full = file.resolved(node.func) or ""
        if not full.startswith("accelerate.") or not full.endswith(f".{PLUGIN}"):
            return
        given = {argument.keyword.value: argument.value for argument in node.args if argument.keyword}
        version = given.get("fsdp_version")
        if isinstance(version, cst.Integer) and version.value == "2":
            yield from self._second(node, given)
            return
        steps = [text for name, text in _ADVICE.items() if name in given]
        if any(argument.star for argument in node.args):
            steps.append("look at the arguments that are unpacked here")
        if "state_dict_type" not in given:
            steps.append('write state_dict_type="FULL_STATE_DICT" to keep the form of checkpoints')
        known = isinstance(version, cst.Integer) or version is None
        yield Diagnosis(
            node,
            Level.MANUAL,
            "this plugin runs FSDP1: fsdp_version is 1 by default"
            if known
            else f"this plugin runs FSDP1 where {brief(file.code(version), 30) if version else ''} is 1",
            f"Set fsdp_version=2: {', '.join(steps)}.",
        )

    def _second(self, node: cst.Call, given: dict[str, cst.BaseExpression]) -> Iterable[Diagnosis]:
        for name in sorted(_OLD & given.keys()):
            if not (isinstance(given[name], cst.Name) and given[name].value == "None"):  # type: ignore[attr-defined]
                told = f"{name} is an argument of FSDP1, and fsdp_version is 2 here"
                yield Diagnosis(node, Level.MANUAL, told, f"For FSDP2: {_ADVICE[name]}.")
        policy = given.get("auto_wrap_policy")
        if policy is not None and not isinstance(policy, cst.SimpleString):
            yield Diagnosis(
                node,
                Level.MANUAL,
                "a callable auto_wrap_policy is dropped silently under FSDP2: only the root is sharded",
                "Use a policy's name and transformer_cls_names_to_wrap.",
            )
