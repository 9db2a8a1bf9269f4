"""Rule for Lightning's ``FSDPStrategy``."""

from __future__ import annotations

from collections.abc import Iterable

import libcst as cst

from fsdp_rules.configuration.config_strategy import RESHARDS, strategy_name
from fsdp_rules.file.expressions import is_none
from fsdp_rules.file.file import File
from fsdp_rules.file.keyed import key_of
from fsdp_rules.hosts._lightning_files import class_named, wanted_of
from fsdp_rules.hosts._lightning_module import Built, built
from fsdp_rules.hosts._lightning_options import Wanted
from fsdp_rules.hosts._lightning_sharding import StrategyCall, is_strategy, policy, sharding
from fsdp_rules.hosts._values import layer_classes, literal, offload
from fsdp_rules.project.hosted import Hosted
from fsdp_rules.verdict.diagnosis import Diagnosis, Edit
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import HOSTED

_ASSUMED = "assumes lightning 2.4 or newer, where ModelParallelStrategy sets the device_mesh of the module"


class LightningStrategy(Rule):
    """Lightning's `FSDPStrategy`.

    It becomes `ModelParallelStrategy`, which leaves sharding to `configure_model`: the `fully_shard` calls are added
    after that method has built the model. The rewrite writes the sizes explicitly: the default "auto" means one
    data-parallel rank per machine, so on one machine every GPU would get the same data and nothing would be sharded. It
    also keeps full checkpoints, because the new strategy saves sharded ones by default.

    A call is rewritten if the file contains the Trainer that uses it, exactly one LightningModule is trained with that
    Trainer, and `configure_model` creates all parameters of that module. The module may be in another file: then both
    files change, or none. Functions of the file that return the strategy, the Trainer or the module are followed.
    Methods of the model that are called directly are registered, and layers whose activations are recomputed are
    wrapped in `configure_model` as well. A call is kept if one of these is missing, if it has another strategy or
    offloading (ModelParallelStrategy moves every parameter to the GPU), or if it is for Fabric. The finding then says
    what to write.
    """

    id = "FSDP556"
    is_wrap = True
    name = "lightning-strategy"
    alone = (r"FSDPStrategy|DDPFullyShardedNative",)
    # The names of the list in which no word of FSDP is.
    spelled = ("DDPFullyShardedNativeStrategy",)
    what_to_test = HOSTED
    markers = (("LightningModule", "configure_model"),)
    open_world = True
    visits = (cst.Call, cst.ClassDef)
    shim = True
    before = """
import lightning as L
from lightning.pytorch.strategies import FSDPStrategy

from layers import Block, Net


class Model(L.LightningModule):
    def configure_model(self):
        self.model = Net()

    def training_step(self, batch):
        return self.model(batch)


strategy = FSDPStrategy(auto_wrap_policy={Block}, sharding_strategy="SHARD_GRAD_OP")
trainer = L.Trainer(devices=8, strategy=strategy)
trainer.fit(Model())
"""
    after = """
import lightning as L
from lightning.pytorch.strategies import ModelParallelStrategy
from torch.distributed.fsdp import fully_shard

from layers import Block, Net


class Model(L.LightningModule):
    def configure_model(self):
        self.model = Net()
        if self.device_mesh is not None:
            mesh = self.device_mesh["data_parallel"]
            for module in reversed(list(self.model.modules())):
                if isinstance(module, Block):
                    fully_shard(module, mesh=mesh, reshard_after_forward=False)
            fully_shard(self.model, mesh=mesh, reshard_after_forward=False)

    def training_step(self, batch):
        return self.model(batch)


strategy = ModelParallelStrategy(
    data_parallel_size=8,
    tensor_parallel_size=1,
    save_distributed_checkpoint=False,
)
trainer = L.Trainer(devices=8, strategy=strategy)
trainer.fit(Model())
"""

    def visit(self, node: cst.Call | cst.ClassDef, file: File) -> Iterable[Diagnosis]:
        """Calls of the class, and the modules that a call in another file shards."""
        if isinstance(node, cst.ClassDef):
            yield from () if file.scope(node) else self._sharded(node, file)
            return
        if not is_strategy(node, file):
            return
        read = StrategyCall.read(node, file)
        wanted, run = read.wanted, read.run
        reason = read.reason
        hosted = _hosted_by(node, file)
        edits: tuple[Edit, ...] = ()
        if run.elsewhere:
            last = run.elsewhere.rpartition(".")[2]
            reason = reason or (hosted.reason if hosted else f"{last} is in another file")
        elif not reason:
            reason = _unseen_layers(wanted, file)
            named = [*wanted.layers, *wanted.checkpointed]
            made = built(run.module, named, file) if run.module and not reason else Built(reason=reason)
            reason = made.reason
            if made.last is not None and not reason:
                if run.low:
                    dtype = f"torch.{run.low}"
                    low = policy({"param_dtype": dtype, "reduce_dtype": dtype}, file)
                    wanted.options.setdefault("mp_policy", low)
                edits = (sharding(wanted, made, made.last, file),)
        if reason:
            told = f"Lightning's FSDPStrategy is FSDP1, and {reason}"
            yield Diagnosis(node, Level.MANUAL, told, lightning_advice(node, file))
            return
        gone = tuple(
            (binding.statement, one.value.value)
            for one in node.args
            if isinstance(one.value, cst.Name) and (binding := file.binding(one.value)) is not None
        )
        edits = (*edits, *read.moved(file))
        yield Diagnosis(node, Level.REVIEW, _ASSUMED, "Require lightning>=2.4", edits, consumes=gone)
        if hosted is not None:
            told = f"assumes code outside {hosted.name} uses its {hosted.root} only by calling the module"
            yield Diagnosis(node, Level.REVIEW, told, f"Check callbacks that read .{hosted.root} of the module")
        for told, advice in (*wanted.assumed, *run.assumed):
            yield Diagnosis(node, Level.REVIEW, told, advice)

    def _sharded(self, node: cst.ClassDef, file: File) -> Iterable[Diagnosis]:
        """What the module ``node`` becomes, where a strategy of another file shards it."""
        name = node.name.value
        mine = [one for one in file.project.hosted if (one.module, one.name) == (file.path, name) and not one.reason]
        if not mine or class_named(name, file) is not node:
            return
        wanted = wanted_of(mine[0], file)
        made = built(node, [*wanted.layers, *wanted.checkpointed], file)
        if made.last is not None and not made.reason:
            told = f"configure_model shards {made.this}.{mine[0].root} for the strategy of {mine[0].strategy}"
            edits = (sharding(wanted, made, made.last, file),)
            yield Diagnosis(node, Level.REVIEW, told, "Change the two files together", edits)


def _hosted_by(node: cst.Call, file: File) -> Hosted | None:
    """What is decided about the call ``node`` and a module of another file."""
    place = (file.path, file.span(node).line)
    return next((one for one in file.project.hosted if (one.strategy, one.line) == place), None)


def _unseen_layers(wanted: Wanted, file: File) -> str:
    """Why the classes of the policy cannot be named at the top of the module, empty if they can."""
    tops = file.layout.module.body
    known = {one.name.value for one in tops if isinstance(one, cst.ClassDef)}
    for line in tops:
        for small in line.body if isinstance(line, cst.SimpleStatementLine) else ():
            if isinstance(small, cst.Import | cst.ImportFrom) and not isinstance(small.names, cst.ImportStar):
                known |= {(one.evaluated_alias or one.evaluated_name).partition(".")[0] for one in small.names}
    unknown = [layer for layer in (*wanted.layers, *wanted.checkpointed) if layer.partition(".")[0] not in known]
    return f"{unknown[0]} is not visible to configure_model" if unknown else ""


def lightning_advice(call: cst.Call, file: File) -> str:
    """The strategy and the calls of ``fully_shard`` that do what ``call`` asks for, as far as the file says it."""
    given = {key_of(one): one.value for one in call.args if not is_none(file.value(one.value))}
    strategy = literal(given["sharding_strategy"], file).plain if "sharding_strategy" in given else "FULL_SHARD"
    name = strategy_name(str(strategy).upper())
    if name == "NO_SHARD":
        return "Use DDPStrategy(): it computes the same."
    options = ['mesh=self.device_mesh["data_parallel"]']
    if name in RESHARDS and not RESHARDS[name]:
        options.append("reshard_after_forward=False")
    is_fabric = "fabric" in (file.resolved(call.func) or "")
    offloads = "cpu_offload" in given and offload(given["cpu_offload"], file).plain is not False
    if offloads and not is_fabric:
        return (
            "Keep FSDPStrategy, or drop cpu_offload and run this tool again: FSDP2's CPUOffloadPolicy refuses "
            "parameters that a strategy moved to the GPU. Fabric's ModelParallelStrategy(parallelize_fn=...) does not "
            "move them."
        )
    if offloads:
        options.append("offload_policy=CPUOffloadPolicy()")
    if "mixed_precision" in given:
        options.append("mp_policy=MixedPrecisionPolicy(...)")
    sharded = literal(given["state_dict_type"], file).plain == "sharded" if "state_dict_type" in given else False
    layers = layer_classes(given.get("auto_wrap_policy"), file)
    checkpointed = "activation_checkpointing_policy" in given or "activation_checkpointing" in given
    if is_fabric:
        kind = given.get("state_dict_type")
        full = kind is not None and literal(kind, file).plain == "full"
        return _fabric(options, layers, not full, checkpointed)
    keywords = ", ".join(options)
    units = f"fully_shard(m, {keywords}) for each m in self.modules() that is one of {layers}, then " if layers else ""
    steps = [
        f"Use ModelParallelStrategy(data_parallel_size=WORLD_SIZE, tensor_parallel_size=1, "
        f"save_distributed_checkpoint={sharded})",
        f"and at the end of configure_model {units}fully_shard(self.model, {keywords})",
    ]
    if name and name.startswith("HYBRID"):
        steps.append("with a 2-D mesh from init_device_mesh, because the strategy's own mesh has no replica dimension")
    if checkpointed:
        steps.append("after apply_activation_checkpointing on the same layers")
    return ", ".join(steps) + "."


def _fabric(options: list[str], layers: str | None, sharded: bool, checkpointed: bool) -> str:
    """The same for Fabric, whose strategy takes a function in place of a method, and saves shards by default."""
    keywords = ", ".join(['mesh=mesh["data_parallel"]', *options[1:]])
    first = "apply_activation_checkpointing on the same layers, " if checkpointed else ""
    units = f"fully_shard(m, {keywords}) for each m in model.modules() that is one of {layers}, " if layers else ""
    backend = ', process_group_backend="cuda:nccl,cpu:gloo"' if "CPUOffloadPolicy" in keywords else ""
    return (
        "Use ModelParallelStrategy(parallelize_fn=shard, data_parallel_size=WORLD_SIZE, tensor_parallel_size=1, "
        f"save_distributed_checkpoint={sharded}{backend}), where shard(model, mesh) calls {first}{units}"
        f"fully_shard(model, {keywords}) and returns model. Build the optimizer for the model that setup_module "
        f"returns."
    )
