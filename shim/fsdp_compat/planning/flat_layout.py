"""Where FSDP1 has the parameters of a unit in its flat parameter, as ``FlatParamHandle`` lays them out."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fsdp_compat.planning.options import Options

#: In a flat parameter of ``use_orig_params=True`` each parameter begins at a multiple of so many bytes.
_ALIGNMENT = 16


def flat_layout(numels: Iterable[int], dtype: torch.dtype, options: Options, ranks: int) -> tuple[list[int], int]:
    """The first element of each parameter, by how many elements the parameters have, and the elements of each rank."""
    computing = getattr(options.mixed_precision, "param_dtype", None) or dtype
    aligned = _ALIGNMENT // computing.itemsize if options.use_orig_params else 1
    total, places = 0, []
    for numel in numels:
        places.append(total + -total % aligned)
        total = places[-1] + numel
    return places, -(-total // ranks)
