"""Pickles that would run code when loaded, by the list of the library picklescan; none of them is ever loaded."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

from picklescan.scanner import SafetyLevel, scan_pickle_bytes

from fsdp_migrate.checkpoints.read.unpickle import Global, Pickled, read

_GETATTR = frozenset({Global("__builtin__", "getattr"), Global("builtins", "getattr")})
#: What torch's own pickles reach with ``getattr``, which is dangerous for what else it reaches.
_OWN_ATTRIBUTES = frozenset(
    {
        Global("torch.distributed._shard.sharded_tensor.api", "ShardedTensor.ProcessGroupState"),
        *(
            Global(module, f"{encoding}.{name}")
            for module, encoding in (
                ("torch.distributed._shard.sharded_tensor.metadata", "MEM_FORMAT_ENCODING"),
                ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
            )
            for name in ("TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT")
        ),
    }
)


def dangerous(pickled: Pickled) -> list[Global]:
    """What the pickle names that runs code of its writer's choice, sorted; empty for one that is safe."""
    names = set(pickled.names)
    foreign = pickled.fetched - _OWN_ATTRIBUTES
    if pickled.fetched and not foreign:
        names -= _GETATTR
    return sorted(name for name in names | foreign if _listed(name))


def pickles_in(data: bytes) -> Iterator[Pickled]:
    """The pickles that follow each other from the start of ``data``, up to the first broken one and with it."""
    rest = data
    while rest:
        pickled = read(rest)
        yield pickled
        if pickled.error is not None:
            return
        rest = rest[pickled.length :]


def _listed(name: Global) -> bool:
    """Whether picklescan lists it, or what a dotted name leads to: ``hub.os.system`` of ``torch`` is ``os.system``."""
    return any(_found(_pickle_of(reading)) for reading in _readings(name))


def _readings(name: Global) -> Iterator[Global]:
    yield name
    parts = name.name.split(".")
    for place in range(1, len(parts)):
        yield Global(".".join(parts[:place]), ".".join(parts[place:]))
        yield Global(parts[place - 1], parts[place])


def _pickle_of(name: Global) -> bytes:
    """A pickle that does nothing but name it; picklescan offers its list through pickles only."""
    if "\n" in f"{name.module}{name.name}":
        return b"cos\nunknown\n."
    return f"c{name.module}\n{name.name}\n.".encode("utf-8", "backslashreplace")


def _found(data: bytes) -> bool:
    logger = logging.getLogger("picklescan")
    before, logger.disabled = logger.disabled, True
    try:
        result = scan_pickle_bytes(io.BytesIO(data), "")
    finally:
        logger.disabled = before
    return any(found.safety is SafetyLevel.Dangerous for found in result.globals)
