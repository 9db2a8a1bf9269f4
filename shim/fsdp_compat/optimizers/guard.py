"""One line before ``fully_shard`` for programs whose optimizer may have been built already."""

from __future__ import annotations

from torch import nn

from fsdp_compat.optimizers.replaced import watch


def guard_optimizers(module: nn.Module) -> None:
    """Note the parameters that ``module`` has now, before ``fully_shard`` replaces them.

    From then on the first step of an optimizer that still holds one of them raises RuntimeError, since it would train
    nothing, and :func:`fsdp_compat.relink_optimizer` knows what each of them has become. No collective.
    """
    names = dict(module.named_modules())
    places = [
        ((part, name), f"{prefix}.{name}".lstrip("."))
        for prefix, part in names.items()
        for name, param in part._parameters.items()
        if param is not None
    ]
    watch(places, names.values())
