"""Rule for accelerate's plugin in Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.configuration.block import Plain, Verdict
from fsdp_rules.configuration.judge import judge
from fsdp_rules.configuration.launched import is_fsdp2
from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import keyed_call
from fsdp_rules.hosts._plugin import Plugin
from fsdp_rules.hosts._plugin_elsewhere import (
    accelerator_of,
    mixed_precision,
    prepared_alone,
    set_on_given,
    taken_elsewhere,
)
from fsdp_rules.project.given_words import PLUGIN
from fsdp_rules.verdict.diagnosis import Diagnosis, Replace
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

_ASSUMED = (
    "assumes model and optimizer are passed to one prepare() call, and no FSDP_ variable sets an argument "
    "that is absent here"
)
_CASTS = "assumes buffers may keep their dtype and each unit may cast its inputs, as FSDP2's policy does"


class AcceleratePlugin(Rule):
    """accelerate's `FullyShardedDataParallelPlugin`.

    The plugin runs FSDP1 unless `fsdp_version` or `FSDP_VERSION` is 2. If all arguments of the call are in the file,
    the call changes like a configuration file, by the same table: `sharding_strategy` becomes `reshard_after_forward`,
    arguments that FSDP2 does not have are removed, and FULL_STATE_DICT, the old default, is written explicitly. A
    policy made of classes becomes their names, because FSDP2 silently drops a callable and then shards only the root.
    The call changes as a whole: if one argument has no counterpart or is only known at run time, none changes.

    accelerate's FSDP2 needs model and optimizer in one `prepare()` call. A file that prepares a model without its
    optimizer is kept. If the plugin comes from another file, the file with the Accelerator decides. A policy that is
    set on the plugin of a running program (`accelerator.state.fsdp_plugin.auto_wrap_policy = ...`) is `manual`, because
    FSDP2 drops it in the same way.
    """

    id = "FSDP551"
    is_wrap = True
    name = "accelerate-plugin"
    what_to_test = HOSTED
    # What takes a plugin that another file makes.
    markers = (("Accelerator", "accelerate"), ".fsdp_plugin")
    open_world = True
    visits = (cst.Assign, cst.Call)
    shim = True
    before = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(sharding_strategy="FULL_SHARD", use_orig_params=True)
accelerator = Accelerator(fsdp_plugin=plugin)
"""
    after = """
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(
    reshard_after_forward=True,
    fsdp_version=2,
    state_dict_type="FULL_STATE_DICT",
)
accelerator = Accelerator(fsdp_plugin=plugin)
"""

    def visit(self, node: cst.Assign | cst.Call, file: File) -> Iterable[Diagnosis]:
        """Calls of the plugin, wherever it is imported from, and what is set on one that accelerate gives."""
        yield from set_on_given(node, file)
        if not isinstance(node, cst.Call):
            return
        full = file.resolved(node.func) or ""
        if full.startswith("accelerate.") and full.endswith(".Accelerator"):
            yield from taken_elsewhere(node, file)
        if not full.startswith("accelerate.") or not full.endswith(f".{PLUGIN}"):
            return
        if any(argument.star or argument.keyword is None for argument in node.args):
            told = "this plugin runs FSDP1 by default, and its arguments are not all named here"
            yield Diagnosis(node, Level.MANUAL, told, "Write the arguments out by name and run this tool again.")
            return
        around: dict[str, Plain] = {"mixed_precision": mixed_precision(file)}
        around["accelerator"] = accelerator_of(node, file) is not None
        plugin = Plugin.read(node, around, file)
        version = plugin.values.get("fsdp_version")
        if version and not version.known:
            told = "this plugin runs FSDP1 or FSDP2, decided at run time"
            yield Diagnosis(node, Level.MANUAL, told, "Write fsdp_version=1 and run this tool again.")
            return
        yield from self._moved(plugin, file)

    def _moved(self, plugin: Plugin, file: File) -> Iterable[Diagnosis]:
        told, change = judge(plugin.block, lambda rule, verdict: True)
        said = [verdict for _, verdict in told]
        blocking = [*self._blocking(plugin, file)]
        own = [] if is_fsdp2(plugin.block) and not blocking else [*self._own(plugin, file)]
        stays = blocking or any(verdict.keeps for verdict in said)
        if stays:
            said = [one for one in said if one.level is Level.MANUAL and not (one.setting and one.setting.fixed)]
            own = []
        found = [*blocking, *own, *(self._diagnosis(verdict, plugin) for verdict in said)]
        if not stays and (change.values or change.removed or change.added or change.names):
            edits = [Replace(plugin.call, lambda code: plugin.text(change, code, file))]
            accelerator = accelerator_of(plugin.call, file) if change.beside else None
            if accelerator is not None:
                edits.append(_with_mesh(accelerator, file))
            first = found[0]
            gone = plugin.consumed(file)
            found[0] = Diagnosis(
                first.node, first.level, first.message, first.advice, tuple(edits), (plugin.call,), gone
            )
        yield from found

    def _diagnosis(self, verdict: Verdict, plugin: Plugin) -> Diagnosis:
        node = plugin.given[verdict.setting.written] if verdict.setting else plugin.call
        return Diagnosis(node, verdict.level, verdict.message, verdict.advice.rstrip("."))

    def _blocking(self, plugin: Plugin, file: File) -> Iterator[Diagnosis]:
        """What keeps the call as it is, beside what the rules about configuration say."""
        for name in plugin.unknown:
            told = f"accelerate's plugin has no argument {name}"
            yield Diagnosis(plugin.given[name], Level.MANUAL, told, "Remove it, or use an argument that is read.")
        for name, value in plugin.values.items():
            if value.fixed:
                told, advice = f"{name}: {value.fixed}", "Write FSDP2's form of it, with fsdp_version=2."
                yield Diagnosis(plugin.given[name], Level.MANUAL, told, advice)
        made = plugin.given.get("param_init_fn")
        if made is not None and not is_none(made):
            told = "accelerate's FSDP2 does not read param_init_fn: a model on the meta device is not initialised"
            yield Diagnosis(made, Level.MANUAL, told, "Initialise the model first, and remove the argument.")
        for assign, name in plugin.set_later(file):
            told = f"this sets {name} of a plugin that runs FSDP1, and FSDP2 expects a different form"
            yield Diagnosis(assign, Level.MANUAL, told, "Pass it to the plugin and run this tool again")
        for call, what in () if is_fsdp2(plugin.block) else prepared_alone(plugin.call, file):
            told = f"this plugin runs FSDP1, and {what} on line {file.span(call).line} raises ValueError under FSDP2"
            advice = "Pass model and optimizer to one prepare() call and run this tool again."
            yield Diagnosis(plugin.call, Level.MANUAL, told, advice)

    def _own(self, plugin: Plugin, file: File) -> Iterator[Diagnosis]:
        """What is true of Python alone."""
        advice = "Start it with torchrun, or check which variables accelerate launch sets"
        yield Diagnosis(plugin.call, Level.REVIEW, _ASSUMED, advice)
        precision = plugin.given.get("mixed_precision_policy")
        if precision is not None and not is_none(precision):
            yield Diagnosis(precision, Level.REVIEW, _CASTS, "Compare the losses of a few steps")
        if "limit_all_gathers" in plugin.given:
            told = "limit_all_gathers is removed: FSDP2 always bounds its all-gathers"
            yield Diagnosis(plugin.given["limit_all_gathers"], Level.SAFE, told)


def _with_mesh(accelerator: cst.Call, file: File) -> Replace:
    """The meshes that FSDP1 makes for a hybrid strategy: shards on the GPUs of a machine, replicas over machines."""
    made, count = file.ref("accelerate.ParallelismConfig"), f"{file.ref('torch.cuda.device_count')}()"
    world = f'int({file.ref("os.environ")}["WORLD_SIZE"])'
    text = f"{made}(\n    dp_replicate_size={world} // {count},\n    dp_shard_size={count},\n)"
    return Replace(accelerator, lambda code: keyed_call(accelerator, {"parallelism_config": text}, {}, code, file))
