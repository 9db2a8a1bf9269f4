"""What torch works out for an operator on DTensors of some shapes, kept over the jobs of a worker.

Torch's own cache holds meshes, whose groups end with their job, and is emptied after each. This one is about shapes
alone: the mesh in what it hands out is that of the job that asks.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

_PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class _UnknownError(Exception):
    """Something of which it is not known what it has to do with the answer."""


def remember() -> None:
    """Have this process's DTensors keep what they work out, where torch asks for it by this name."""
    dispatcher = importlib.import_module("torch.distributed.tensor").DTensor._op_dispatcher
    propagator = dispatcher.sharding_propagator
    name = "propagate_op_sharding_non_cached"
    if hasattr(torch._C, "_clear_DTensor_sharding_propagator_cache") and name not in vars(propagator):
        setattr(propagator, name, _remembering(getattr(propagator, name)))


def _remembering(work_out: Callable[[Any], Any]) -> Callable[[Any], Any]:
    spec_class = importlib.import_module("torch.distributed.tensor._dtensor_spec").DTensorSpec
    is_tracing = importlib.import_module("torch.distributed.tensor._sharding_prop")._are_we_tracing
    tensors = importlib.import_module("torch.distributed.tensor")
    placements = {tensors.Partial, tensors.Replicate, tensors.Shard}
    known: dict[Hashable, Any] = {}

    def fixed(value: Any) -> Hashable:
        if isinstance(value, spec_class):
            rest = (value.shard_order, value.use_strided_shard_as_shard_order)
            return (spec_class, value.placements, value.tensor_meta, *rest)
        if isinstance(value, list | tuple):
            return (type(value), *map(fixed, value))
        if isinstance(value, dict):
            return (dict, *((name, fixed(inner)) for name, inner in value.items()))
        if type(value) not in _PLAIN:
            raise _UnknownError
        # By its text: 1, 1.0 and True are equal.
        return (type(value), repr(value))

    def specs(value: Any) -> Iterator[Any]:
        if isinstance(value, spec_class):
            yield value
        elif isinstance(value, list | tuple | dict):
            for inner in value.values() if isinstance(value, dict) else value:
                yield from specs(inner)

    def on_mesh(mesh: Any, value: Any) -> Any:
        if isinstance(value, spec_class):
            value = copy.copy(value)
            value.mesh = mesh
        elif isinstance(value, list | tuple):
            return type(value)([on_mesh(mesh, inner) for inner in value])
        elif isinstance(value, dict):
            return {name: on_mesh(mesh, inner) for name, inner in value.items()}
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            schemas = ("output_spec", "redistribute_schema", "args_schema", "kwargs_schema")
            fields = {name: on_mesh(mesh, vars(value)[name]) for name in schemas if name in vars(value)}
            return dataclasses.replace(value, **fields)
        return value

    @functools.wraps(work_out)
    def worked_out(schema: Any) -> Any:
        given = (schema.args_schema, schema.kwargs_schema)
        mesh = next((spec.mesh for spec in specs(given)), None)
        if mesh is None or is_tracing() or any(spec.mesh is not mesh for spec in specs(given)):
            return work_out(schema)
        try:
            what = (schema.op, fixed(given), torch.get_default_dtype(), torch.distributed.get_world_size())
        except _UnknownError:
            return work_out(schema)
        place = (mesh.device_type, str(mesh.mesh.tolist()), mesh.mesh_dim_names)
        if (what, place) not in known:
            answer = work_out(schema)
            moved = answer.redistribute_schema
            found = (answer.output_spec, moved and (moved.args_schema, moved.kwargs_schema))
            # Other placements can hold more than what they say: a lookup in a sharded table leaves its mask in one.
            if all(spec.mesh is mesh and placements.issuperset(map(type, spec.placements)) for spec in specs(found)):
                known[what, place] = on_mesh(None, answer)
            return answer
        return on_mesh(mesh, known[what, place])

    return worked_out
