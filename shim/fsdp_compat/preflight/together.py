"""Checks that need all ranks: plans, replicas, shards, data, and a save and load in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from fsdp_compat.preflight.facts import Facts, local
from fsdp_compat.preflight.report import Suspicion


def other_plans(facts: Facts) -> Iterator[Suspicion]:
    """Ranks whose units, parameter names or shapes differ would wait for each other in a collective."""
    own = {
        "units": [(unit.name, unit.numel, unit.shards, unit.replicas) for unit in facts.units],
        "parameters": [_of_plan(name, param) for name, param in facts.parameters.items()],
    }
    everyone = gathered(own)
    for rank, other in enumerate(everyone[1:], 1):
        for what in ("parameters", "units"):
            differing = [(a, b) for a, b in zip(everyone[0][what], other[what], strict=False) if a != b]
            if differing or len(everyone[0][what]) != len(other[what]):
                here, there = differing[0] if differing else (f"{len(everyone[0][what])}", f"{len(other[what])}")
                message = f"{what} differ between ranks: {here} on rank 0 and {there} on rank {rank}"
                cure = "Build and shard the same model on every rank, in the same order."
                yield Suspicion("other-plans", "manual", f"rank {rank}", message, cure)
                return


def _of_plan(name: str, param: torch.Tensor) -> tuple[object, ...]:
    # Parameters of FSDP1 are views of this rank's part of a flat one; their whole shapes are in the units' sizes.
    whole = isinstance(param, DTensor) or param.dim() != 1
    return name, tuple(param.shape) if whole else (), str(param.dtype)


def apart(facts: Facts) -> Iterator[Suspicion]:
    """Replicas of a shard that start different, or different shards that start equal."""
    names = [name for name, param in facts.parameters.items() if isinstance(param, DTensor)]
    everyone = gathered([_of_rank(facts.parameters[name]) for name in names])
    for index, name in enumerate(names):
        by_shard: dict[Any, set[str]] = {}
        by_bits: dict[str, set[Any]] = {}
        for shard, bits, constant, numel in (of_rank[index] for of_rank in everyone):
            by_shard.setdefault(shard, set()).add(bits)
            if not constant and numel >= 8:
                by_bits.setdefault(bits, set()).add(shard)
        if any(len(found) > 1 for found in by_shard.values()):
            message = "starts with different values on the ranks that replicate it"
            cure = "Broadcast the parameters over the replicate dimension: fully_shard never does."
            yield Suspicion("replicas-apart", "manual", name, message, cure)
            return
        if any(len(found) > 1 for found in by_bits.values()):
            message = "has equal elements on different ranks: each rank drew the same random numbers for its shard"
            cure = (
                "Initialise before fully_shard, or on the device, where DTensor uses a separate generator for "
                "each shard."
            )
            yield Suspicion("same-shards", "manual", name, message, cure)
            return


def _of_rank(param: Any) -> tuple[Any, str, bool, int]:
    coordinate = param.device_mesh.get_coordinate()
    sharded = [c for c, placement in zip(coordinate, param.placements, strict=True) if not placement.is_replicate()]
    mine = local(param)
    if mine.is_meta or not mine.numel():
        return tuple(sharded), "", True, 0
    raw = mine.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return tuple(sharded), hashlib.sha256(raw).hexdigest(), bool((mine == mine.flatten()[0]).all()), mine.numel()


def same_data(facts: Facts) -> Iterator[Suspicion]:
    """All ranks got the same sample, so that more ranks bring nothing."""
    if not facts.sample or facts.world == 1:
        return
    digests = [
        hashlib.sha256(local(t).cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()) for t in facts.sample
    ]
    everyone = gathered([digest.hexdigest() for digest in digests])
    if all(other == everyone[0] for other in everyone):
        message = f"all {facts.world} ranks got the same sample"
        yield Suspicion("same-data", "review", "sample", message, "Select a rank's data by its rank in the mesh.")


def save_and_load(facts: Facts) -> Iterator[Suspicion]:
    """The state of model and optimizer, taken and put back in memory, as the first checkpoint will do it."""
    if not facts.units or facts.units[0].kind != "FSDP2" or any(local(p).is_meta for p in facts.parameters.values()):
        return
    optimizer = facts.optimizer
    fresh = optimizer is not None and not optimizer.state
    reason = ""
    kinds: tuple[str, str] | None = None
    # It reaches torch's ShardedTensor, which a coming torch may lack; the shim has to be importable without.
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    try:
        model_state, state = get_state_dict(facts.model, optimizer if optimizer is not None else ())
        # Loading casts the state to the parameter's dtype.
        kinds = state_kinds(facts)
        set_state_dict(
            facts.model,
            optimizer if optimizer is not None else (),
            model_state_dict=model_state,
            optim_state_dict=state,
        )
    except (
        RuntimeError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        AssertionError,
        NotImplementedError,
    ) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if fresh and optimizer is not None:
        # Taking the state of an optimizer that has not stepped makes torch step it once, with gradients of zeros.
        optimizer.state.clear()
    told = next((found for found in gathered(kinds) if found is not None), None)
    if told is not None:
        message = f"the optimizer keeps {told[1]}: the dtype of a parameter's state depends on the number of ranks"
        cure = "Set the optimizer's threshold so that all parameters get the same dtype, or keep the number of ranks."
        yield Suspicion("state-dtypes", "review", told[0], message, cure)
    if reason:
        message = f"cannot be saved and loaded: {reason}"
        cure = "Use an optimizer and parameters that torch.distributed.checkpoint.state_dict supports."
        yield Suspicion("save-and-load", "manual", "state", message, cure)


def state_kinds(facts: Facts) -> tuple[str, str] | None:
    """A parameter, and what its optimizer state is beside that of others, where one state has several dtypes."""
    first: dict[str, tuple[torch.dtype, str]] = {}
    for name, param in facts.parameters.items():
        own = facts.optimizer.state.get(param, {}) if facts.optimizer is not None else {}
        for key, value in own.items():
            if isinstance(value, torch.Tensor) and value.numel() > 1:
                dtype, other = first.setdefault(key, (value.dtype, name))
                if dtype != value.dtype:
                    plain = [str(each).removeprefix("torch.") for each in (value.dtype, dtype)]
                    return name, f"its {key} in {plain[0]}, and that of {other} in {plain[1]}"
    return None


def gathered(own: Any) -> list[Any]:
    """``own`` of every rank."""
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return [own]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, own)
    return found
