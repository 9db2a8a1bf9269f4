"""Checks of how the model is cut: units, meshes, ties, and what lies outside."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from fsdp_compat.preflight.facts import Facts
from fsdp_compat.preflight.report import Suspicion
from fsdp_compat.torch_.param_groups import has_run, param_groups
from fsdp_compat.units import clean_name

#: A unit with a larger share than this of the elements leaves little to shard by layers.
_MOST = 0.8
#: The cure for weights that one unit each has of a tied one.
ONE_UNIT = "Put both modules into one unit: fully_shard([embedding, head]); torch <= 2.11 unties them silently."
#: Methods that run a model past its forward, by the names that libraries give them.
_ENTRY_POINTS = ("generate", "encode", "decode", "sample", "compute_loss")


def few_units(facts: Facts) -> Iterator[Suspicion]:
    """Only the root is sharded, or one unit holds most of a model that has repeated layers."""
    total = sum(unit.numel for unit in facts.units)
    repeated = _repeated_layers(facts.model)
    if not facts.units or repeated is None:
        return
    largest = max(facts.units, key=lambda unit: unit.numel)
    cure = f"Call fully_shard on every {repeated} before the model itself."
    if len(facts.units) == 1:
        yield Suspicion("few-units", "review", "(root)", "only the root is sharded: it is gathered as a whole", cure)
    elif largest.numel > _MOST * total:
        share = f"{largest.numel / total:.0%}"
        yield Suspicion("few-units", "review", largest.name or "(root)", f"one unit holds {share} of the model", cure)


def _repeated_layers(model: nn.Module) -> str | None:
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) > 1:
            names = Counter(type(layer).__name__.removeprefix("FSDP") for layer in module)
            name, count = names.most_common(1)[0]
            if count > 1 and any(True for _ in module.parameters()):
                return name
    return None


def mesh_of_one(facts: Facts) -> Iterator[Suspicion]:
    """The shard dimension of a mesh has one rank, so that nothing is sharded."""
    for unit in facts.units:
        if unit.shards == 1 and facts.world > 1 and unit.kind == "FSDP2":
            message = f"is split into 1 shard on {facts.world} ranks: every rank has all of it"
            cure = "Pass fully_shard a mesh whose last dimension has more than one rank, or (replicate, shard)."
            yield Suspicion("mesh-of-one", "review", unit.name or "(root)", message, cure)
            return


def fewer_ranks(facts: Facts) -> Iterator[Suspicion]:
    """A mesh covers some of the ranks only: the others do not take part in the reduction of gradients."""
    for unit in facts.units:
        covered = unit.shards * unit.replicas
        tensor_parallel = any(
            isinstance(param, DTensor) and param.device_mesh.ndim > 2 - (unit.replicas == 1)
            for param in facts.parameters.values()
        )
        if unit.shards > 1 and covered < facts.world and not tensor_parallel:
            message = f"is sharded and replicated over {covered} of {facts.world} ranks"
            cure = "Flatten the mesh, or add the missing dimension as the replicate dimension."
            yield Suspicion("fewer-ranks", "manual", unit.name or "(root)", message, cure)
            return


def outside_units(facts: Facts) -> Iterator[Suspicion]:
    """Trained parameters of no unit: nobody reduces their gradients."""
    inside = {name for unit in facts.units for name in unit.parameters}
    if not facts.units:
        return
    flat = any(unit.kind == "FSDP1" for unit in facts.units)
    for name, param in facts.parameters.items():
        if param.requires_grad and name not in inside and not isinstance(param, DTensor) and "_flat_param" not in name:
            message = "is trained but in no unit: its gradient is not reduced"
            cure = "Shard the root as well, or reduce this gradient in the training loop."
            yield Suspicion("outside-units", "review" if flat else "manual", name, message, cure)


def untied(facts: Facts) -> Iterator[Suspicion]:
    """The model's configuration ties two weights that are two parameters."""
    config = getattr(facts.model, "config", None)
    get_input, get_output = (getattr(facts.model, f"get_{which}_embeddings", None) for which in ("input", "output"))
    if not getattr(config, "tie_word_embeddings", False) or get_input is None or get_output is None:
        return
    first, second = get_input(), get_output()
    if first is not None and second is not None and first.weight is not second.weight:
        message = "the configuration ties it to the embedding, but the two are separate parameters"
        yield Suspicion("untied", "manual", "output embedding", message, ONE_UNIT)


def frozen_with_trained(facts: Facts) -> Iterator[Suspicion]:
    """Frozen and trained parameters in one unit: the gradients of a unit are reduced in one buffer."""
    for unit in facts.units:
        flags = {facts.parameters[name].requires_grad for name in unit.parameters if name in facts.parameters}
        if flags == {True, False} and unit.name:
            message = "has frozen and trained parameters, which costs memory for unneeded gradients"
            cure = "Give the adapters or the frozen part separate units."
            yield Suspicion("frozen-with-trained", "review", unit.name, message, cure)


def checkpoint_inside_out(facts: Facts) -> Iterator[Suspicion]:
    """Activation checkpointing around a unit gathers it again in each backward."""
    for name, module in facts.model.named_modules():
        inner = getattr(module, "_checkpoint_wrapped_module", None)
        if inner is not None and (isinstance(inner, FSDPModule) or hasattr(inner, "_fsdp_wrapped_module")):
            message = "is inside an activation checkpoint, so recomputation gathers and reshards it"
            cure = "Apply activation checkpointing first, and shard the checkpointed module."
            yield Suspicion("checkpoint-inside-out", "review", clean_name(f"{name}.").rstrip("."), message, cure)
            return


def adapters_alone(facts: Facts) -> Iterator[Suspicion]:
    """Low-rank adapters are units: kernels that fuse an adapter with its layer read its weight past its forward."""
    alone = [unit for unit in facts.units if unit.name and all("lora_" in name for name in unit.parameters)]
    if alone:
        message = (
            f"{len(alone)} units contain only an adapter: each has its own gather, and fused kernels read its shards"
        )
        cure = "Shard the layers that contain the adapters, not the adapters."
        yield Suspicion("adapters-alone", "review", alone[0].name, message, cure)


def root_resharded(facts: Facts) -> Iterator[Suspicion]:
    """The root gives its parameters back after its forward, and gathers them at once for the backward."""
    root = facts.root
    # Before its first forward a root that was told nothing does not know yet that it is one.
    told = root is not None and root.kind == "FSDP2" and has_run(facts.model)
    if told and root is not None and root.reshard and root.shards > 1 and root.numel and len(facts.units) > 1:
        message = "is resharded after its forward, and immediately gathered again for the backward"
        cure = "Do not pass reshard_after_forward for the model itself, or pass False."
        yield Suspicion("root-resharded", "review", "(root)", message, cure)


def output_casts(facts: Facts) -> Iterator[Suspicion]:
    """A dtype for outputs at every unit: activations are cast up and down at each border."""
    inner = [unit for unit in facts.units if unit.name and unit.output_dtype not in (None, unit.param_dtype)]
    if len(inner) > 1:
        dtype = str(inner[0].output_dtype).removeprefix("torch.")
        message = f"{len(inner)} inner units cast their outputs to {dtype}"
        cure = "Set output_dtype only for the root."
        yield Suspicion("output-casts", "review", inner[0].name, message, cure)


def entry_points(facts: Facts) -> Iterator[Suspicion]:
    """Methods that use the parameters without a forward of the root, which alone gathers them."""
    if not isinstance(facts.model, FSDPModule):
        return
    for name in _ENTRY_POINTS:
        if callable(getattr(type(facts.model), name, None)) and name not in vars(facts.model):
            message = f"{name}() does not gather the root: it fails with mixed tensors and DTensors"
            cure = f'Call register_fsdp_forward_method(model, "{name}").'
            yield Suspicion("entry-points", "review", name, message, cure)


def class_layout(facts: Facts) -> Iterator[Suspicion]:
    """A class that fully_shard cannot replace by its own, which has FSDPModule as its first base.

    Python allows that only where the base that brings the instance dictionary comes before those without one, such as
    ABC, Generic and classes with empty ``__slots__``.
    """
    if any(unit.kind == "FSDP2" for unit in facts.units):
        return
    wrapped = [(unit.name, unit.module.get_submodule("_fsdp_wrapped_module")) for unit in facts.units]
    lists = [(name, module) for name, module in facts.model.named_modules() if isinstance(module, nn.ModuleList)]
    layers = [(f"{name}.{number}", layer) for name, layers in lists for number, layer in enumerate(layers)]
    for name, module in wrapped or [("", facts.model), *layers]:
        owner = _brings_dictionary(type(module))
        base = owner.__base__
        if base is not None and base is not object:
            message = f"fully_shard cannot replace class {owner.__name__}, since {base.__name__} is its first base"
            cure = f"Write {base.__name__} last among the bases of {owner.__name__}."
            yield Suspicion("class-layout", "manual", name or "(root)", message, cure)
            return


def _brings_dictionary(cls: type) -> type:
    """The class that gives instances of ``cls`` their dictionary, along the bases that decide their layout."""
    while cls.__base__ is not None and cls.__base__.__dictoffset__:
        cls = cls.__base__
    return cls


def mesh_per_unit(facts: Facts) -> Iterator[Suspicion]:
    """With a number as reshard_after_forward each unit makes a mesh, and process groups for it."""
    found = [
        (unit, group.post_forward_mesh_info)
        for unit in facts.units
        if unit.kind == "FSDP2"
        for group in param_groups(unit.module)
        if group.post_forward_mesh_info not in (None, group.mesh_info)
    ]
    meshes = {id(info.mesh) for _, info in found}
    if len(meshes) > 1:
        ranks = found[0][1].shard_mesh_size
        message = f"{len(meshes)} units reshard to {ranks} ranks, and each created its own process groups"
        cure = "Pass True or False as reshard_after_forward: with NCCL, each group takes additional memory."
        yield Suspicion("mesh-per-unit", "review", found[0][0].name or "(root)", message, cure)


def several_meshes(facts: Facts) -> Iterator[Suspicion]:
    """The norm of gradients on several meshes, which torch does not stack."""
    meshes = {
        param.device_mesh for param in facts.parameters.values() if isinstance(param, DTensor) and param.requires_grad
    }
    if len(meshes) > 1:
        message = f"has trained parameters on {len(meshes)} meshes: torch.nn.utils.clip_grad_norm_ raises"
        cure = "Clip with fsdp_compat.clip_grad_norm_(model, max_norm)."
        yield Suspicion("several-meshes", "review", "(root)", message, cure)
