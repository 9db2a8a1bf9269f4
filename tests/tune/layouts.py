"""Layouts of every kind for a recorded model of tests."""

from __future__ import annotations

from dataclasses import replace

from fsdp_migrate.tune.sharding_layout import Layout, Unit
from fsdp_migrate.tune.traced_model import TracedModel

KINDS = (
    "root",
    "blocks",
    "whole",
    "resharded root",
    "ends",
    "every layer",
    "joined",
    "accumulated",
    "accumulated, synchronised",
    "ahead",
    "low",
    "lower",
    "replicated",
    "hybrid",
    "kept over two",
)


def layouts(model: TracedModel, ranks: int) -> dict[str, Layout]:
    """By :data:`KINDS`, the last two on four ranks alone; what is tied stays in one unit."""
    at = model.by_name
    root = Unit((0,))
    tied = any(len(parameter.places) > 1 for parameter in model.parameters)
    blocks = tuple(Unit((place,)) for name, place in at.items() if name.startswith("blocks.") and name.count(".") == 1)
    ends = (
        (Unit((at["embedding"], at["norm"], at["head"])),)
        if tied
        else (Unit((at["embedding"],)), Unit((at["norm"], at["head"]), False))
    )
    plain = Layout("blocks", (*blocks, root), ranks)
    deep = tuple(
        Unit((place,))
        for place in range(len(model.modules) - 1, 0, -1)
        if any(place in parameter.places for parameter in model.parameters)
        and not (tied and model.modules[place].name in ("embedding", "head"))
    )
    found = {
        "root": Layout("root", (root,), ranks),
        "blocks": plain,
        "whole": replace(plain, units=(*(replace(unit, reshard=False) for unit in blocks), root)),
        "resharded root": replace(plain, units=(*blocks, replace(root, reshard=True))),
        "ends": replace(plain, units=(*blocks, *ends, root)),
        "every layer": replace(plain, units=(*deep, root)),
        "joined": replace(plain, units=(Unit((*blocks[0].modules, *blocks[1].modules)), *blocks[2:], root)),
        "accumulated": replace(plain, microbatches=3),
        "accumulated, synchronised": replace(plain, microbatches=2, synchronise_last=False),
        "ahead": replace(plain, forward_prefetch=1, backward_prefetch=2),
        "low": replace(plain, param_dtype="bfloat16", reduce_dtype="float32", microbatches=2),
        "lower": replace(plain, param_dtype="bfloat16", reduce_dtype="bfloat16"),
        "replicated": replace(plain, shards=1, replicas=ranks),
    }
    if ranks == 4:
        found["hybrid"] = replace(plain, shards=2, replicas=2)
        found["kept over two"] = replace(plain, units=(*(replace(unit, reshard=2) for unit in blocks), root))
    return found
