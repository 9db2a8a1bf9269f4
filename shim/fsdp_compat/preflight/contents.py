"""Checks of what is in the parameters and the optimizer, without communication."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.distributed.tensor import DTensor

from fsdp_compat.preflight.facts import Facts, local
from fsdp_compat.preflight.report import Suspicion
from fsdp_compat.preflight.structure import ONE_UNIT
from fsdp_compat.units import clean_name

#: Layers whose weight is a subclass of Parameter, which fully_shard replaces by one of torch's.
_PACKED_LAYERS = ("Linear4bit", "Linear8bitLt", "LinearNF4")
#: The tensor of torchao that is gathered in float8.
_FLOAT8 = "WeightWithDynamicFloat8CastTensor"
_LOW = (torch.bfloat16, torch.float16)


def uninitialised(facts: Facts) -> Iterator[Suspicion]:
    """Parameters on the meta device, with non-finite elements, or matrices of zeros."""
    zeros, matrices = [], 0
    for name, param in facts.parameters.items():
        mine = local(param)
        if mine.is_meta:
            yield _uninitialised(name, "is on the meta device and has no values")
        elif mine.is_floating_point() and mine.numel():
            if not bool(torch.isfinite(mine).all()):
                yield _uninitialised(name, "has elements that are not finite")
            elif param.dim() >= 2:
                matrices += 1
                if not bool(mine.any()):
                    zeros.append(name)
    # Some matrices start as zeros on purpose, such as the second one of a low-rank adapter; most do not.
    if zeros and len(zeros) > matrices / 2:
        yield _uninitialised(zeros[0], f"and {len(zeros) - 1} more of {matrices} matrices are zeros")


def _uninitialised(name: str, message: str) -> Suspicion:
    cure = "Initialise the model, or load its weights, after to_empty and before the first step."
    return Suspicion("uninitialised", "manual", name, message, cure)


def same_layers(facts: Facts) -> Iterator[Suspicion]:
    """Matrices of different layers are equal element by element, as after an initialisation with a restored seed."""
    seen: dict[tuple[object, ...], str] = {}
    classes = {
        clean_name(f"{name}.").rstrip("."): type(module).__name__.removeprefix("FSDP")
        for name, module in facts.model.named_modules()
    }
    for name, param in facts.parameters.items():
        mine = local(param)
        if param.dim() < 2 or mine.numel() < 8 or mine.is_meta or not mine.is_floating_point():
            continue
        first = mine.flatten()[0]
        if bool((mine == first).all()):
            continue
        key = (tuple(param.shape), str(mine.dtype), float(mine.double().sum()), float(mine.double().square().sum()))
        other = seen.setdefault(key, name)
        if other != name and torch.equal(local(facts.parameters[other]), mine):
            if classes.get(_owner(name)) != classes.get(_owner(other)):
                message = f"is equal to {other} in a module of another class, but the two are separate parameters"
                yield Suspicion("untied", "manual", name, message, ONE_UNIT)
                return
            message = f"is equal to {other}: layers that start equal remain equal"
            cure = (
                "Initialise before fully_shard; with CPU offload, the random generator is reset after each parameter."
            )
            yield Suspicion("same-layers", "manual", name, message, cure)
            return


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def optimizer_parameters(facts: Facts) -> Iterator[Suspicion]:
    """The optimizer steps other tensors than the model's, or not all that are trained."""
    if facts.optimizer is None:
        return
    held = {id(param) for group in facts.optimizer.param_groups for param in group["params"]}
    own = {id(param) for param in facts.parameters.values()}
    strange = len(held - own)
    cure = "Build the optimizer after fully_shard, from model.parameters()."
    if strange and not held & own:
        yield Suspicion(
            "stale-optimizer", "manual", "optimizer", f"none of its {strange} parameters belongs to the model", cure
        )
    elif strange:
        message = f"{strange} of its parameters do not belong to the model"
        yield Suspicion("stale-optimizer", "review", "optimizer", message, cure)
    lacking = [name for name, param in facts.parameters.items() if param.requires_grad and id(param) not in held]
    if lacking and held & own:
        message = f"does not step {lacking[0]}" + (f" and {len(lacking) - 1} more" if len(lacking) > 1 else "")
        yield Suspicion("left-out", "review", "optimizer", message, "Add the parameters, or freeze them.")


def low_master_weights(facts: Facts) -> Iterator[Suspicion]:
    """Trained weights are kept in the low precision that mixed precision computes in."""
    for unit in facts.units:
        trained = [facts.parameters[name] for name in unit.parameters if name in facts.parameters]
        if unit.param_dtype in _LOW and any(p.dtype in _LOW and p.requires_grad for p in trained):
            dtype = str(unit.param_dtype).removeprefix("torch.")
            message = f"trains weights that are kept in {dtype}: updates below their precision are lost"
            cure = "Keep the model in float32 and let mp_policy compute in low precision."
            yield Suspicion("low-master-weights", "review", unit.name or "(root)", message, cure)
            return


def promoting_buffers(facts: Facts) -> Iterator[Suspicion]:
    """Buffers in fp32 promote the activations that they meet: FSDP1 cast them, FSDP2 does not."""
    low = next((unit for unit in facts.units if unit.param_dtype in _LOW and unit.kind == "FSDP2"), None)
    if low is None:
        return
    statistics = ("running_mean", "running_var")
    for name, buffer in facts.model.named_buffers():
        if buffer.dtype is torch.float32 and not name.endswith(statistics):
            dtype = str(low.param_dtype).removeprefix("torch.")
            message = (
                f"is float32 in a model that computes in {dtype}, and promotes the tensors that it is combined with"
            )
            yield Suspicion(
                "promoting-buffers", "review", name, message, "Cast the buffer, or the values computed from it."
            )
            return


def mixed_dtypes(facts: Facts) -> Iterator[Suspicion]:
    """Trained parameters of one unit in several dtypes: their gradients are reduced in one buffer of one dtype."""
    for unit in facts.units:
        own = [facts.parameters[name] for name in unit.parameters if name in facts.parameters]
        dtypes = sorted({str(param.dtype).removeprefix("torch.") for param in own if param.requires_grad})
        if len(dtypes) > 1 and unit.param_dtype is None:
            message = f"trains parameters in {' and '.join(dtypes)}: their gradients cannot be reduced together"
            cure = "Cast the model to one dtype, or give the parameters of the other dtype a separate unit."
            yield Suspicion("mixed-dtypes", "manual", unit.name or "(root)", message, cure)
            return


def quantised(facts: Facts) -> Iterator[Suspicion]:
    """Parameters of packed integers, and optimizers whose kernels read whole tensors, cannot be sharded by rows."""
    for name, param in facts.parameters.items():
        kind = type(param).__name__
        if kind in ("Params4bit", "Int8Params") or (isinstance(param, DTensor) and not param.dtype.is_floating_point):
            message = f"contains {str(param.dtype).removeprefix('torch.')}: its scales do not move with the shards"
            cure = "Store it in a floating-point dtype (bnb_4bit_quant_storage), or leave it out of the units."
            yield Suspicion("quantised", "manual", name, message, cure)
            break
    for owner, module in facts.model.named_modules():
        weight = module._parameters.get("weight")
        if type(module).__name__ in _PACKED_LAYERS and isinstance(weight, DTensor):
            message = f"is the weight of a {type(module).__name__} and has lost its class: its scales are not sharded"
            cure = "Leave 4-bit layers out of the units, or use a release of the library that shards its scales."
            yield Suspicion("quantised", "review", clean_name(f"{owner}.weight"), message, cure)
            break
    optimizer = facts.optimizer
    if optimizer is not None and type(optimizer).__module__.startswith("bitsandbytes"):
        message = f"{type(optimizer).__name__} reads whole tensors, but shards are only parts"
        cure = "Use an 8-bit optimizer that supports DTensors, such as torchao's."
        yield Suspicion("quantised", "manual", "optimizer", message, cure)


def uneven_float8(facts: Facts) -> Iterator[Suspicion]:
    """Weights that are gathered in float8 and have no equal rows for each rank: FSDP2 pads its own shards alone."""
    for name, param in facts.parameters.items():
        if not isinstance(param, DTensor) or type(param._local_tensor).__name__ != _FLOAT8:
            continue
        ranks = [param.device_mesh.size(dim) for dim, placed in enumerate(param.placements) if placed.is_shard()]
        if any(param.shape[0] % size for size in ranks):
            message = f"has {param.shape[0]} rows on {ranks[-1]} ranks: the gather in float8 needs equal shards"
            cure = "Turn enable_fsdp_float8_all_gather off for it (module_filter_fn), or use rows that divide evenly."
            yield Suspicion("uneven-float8", "manual", name, message, cure)
            return
