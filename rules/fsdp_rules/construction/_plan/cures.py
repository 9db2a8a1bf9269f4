"""What a person can change so that a call needs no helper, by the reason that it needs one."""

from __future__ import annotations

from collections.abc import Sequence

#: A part of the reason, and what to change; the first that is found counts.
CURES = (
    ("--helpers always", "use --helpers needed"),
    ("wraps this model already", "remove one of the two wraps"),
    ("more than", "move the mesh and the units to custom functions, and call fully_shard there"),
    ("built before sharding", "build the optimizer after the sharding"),
    ("used in other places", "give this call a value that nothing else reads"),
    ("several variables", "give this call a value that nothing else reads"),
    ("a larger expression", "assign the MixedPrecision to a new variable above the call"),
    ("BatchNorm", "shard models that have BatchNorm without mp_policy"),
    ("buffer_dtype", "cast the buffers by hand, and give the MixedPrecision one buffer_dtype"),
    ("one group or two", "make the mesh with init_device_mesh, and pass it as device_mesh"),
    ("ignored parameters", "pass them as ignored_params to each fully_shard call (torch 2.7)"),
    ("from torch 2.7 on", "require torch 2.7"),
    ("between a forward and its backward", "clear them above the forward, and compare the losses"),
    ("through it frozen", "call the optimizer's zero_grad() right after its step(), and compare the losses"),
    ("no step uses", "remove that part, or require torch 2.13"),
    ("run time", "write the value as a literal in the call, or choose between literals there"),
)
OTHERWISE = "write the fully_shard calls by hand"


def cure(reasons: Sequence[str]) -> str:
    """What to change to lose the helper that ``reasons`` ask for: all of it, each thing once."""
    found = [next((text for part, text in CURES if part in reason), OTHERWISE) for reason in reasons]
    return ", and ".join(dict.fromkeys(found))
