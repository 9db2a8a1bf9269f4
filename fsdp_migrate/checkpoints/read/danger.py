"""Which names in a pickle a checkpoint needs, and what the others would do when it is loaded. No pickle is ever run.

The list is of what is needed (``needed.toml``), not of what is dangerous: nobody can list all that is.
"""

from __future__ import annotations

import io
import logging
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from picklescan.scanner import SafetyLevel, scan_pickle_bytes

from fsdp_migrate.checkpoints.read.unpickle import Global, Pickled, read_next
from fsdp_migrate.tree.toml import toml

_GETATTR = frozenset({Global("__builtin__", "getattr"), Global("builtins", "getattr")})
#: A whole model or optimizer that somebody pickled: foreign to a checkpoint, but no function of torch's.
_WHOLE_OBJECT = re.compile(r"torch\.(nn\.modules|optim)\.[\w.]+ [A-Z]\w*")
#: Their modules hold functions that run code or touch files, in too great a number to list.
_ROOTS = frozenset({*sys.stdlib_module_names, "__builtin__", "copy_reg", "torch", "numpy", "commands", "popen2"})
#: torch wrote five, before it wrote archives.
MOST_PICKLES = 1000


def dangerous(pickled: Pickled) -> list[Global]:
    """What the pickle names and no checkpoint needs, from modules that run code or touch files; sorted."""
    return [name for name in _unneeded(pickled) if _runs_code(name)]


def foreign(pickled: Pickled) -> list[Global]:
    """What else the pickle names and no checkpoint needs: a program's own classes, whose code runs on load; sorted."""
    return [name for name in _unneeded(pickled) if not _runs_code(name)]


def pickles_in(data: bytes) -> Iterator[Pickled]:
    """The pickles that follow each other from the start of ``data``, up to the first broken one and with it.

    One that comes after very many others counts as broken.
    """
    stream = io.BytesIO(data)
    for _ in range(MOST_PICKLES):
        if stream.tell() >= len(data):
            return
        pickled = read_next(stream)
        yield pickled
        if pickled.error is not None:
            return
    if stream.tell() < len(data):
        yield Pickled(None, f"more than {MOST_PICKLES} pickles in one file", frozenset(), frozenset(), 0)


@cache
def needed() -> frozenset[Global]:
    """The names of ``needed.toml``."""
    tables = toml().loads(files("fsdp_migrate.checkpoints.read").joinpath("needed.toml").read_text(encoding="utf-8"))
    return frozenset(
        Global(module, name) for table in tables.values() for module, names in table.items() for name in names
    )


def _unneeded(pickled: Pickled) -> list[Global]:
    names = (pickled.names | pickled.fetched) - needed()
    # torch's own pickles reach the members of some enumerations with it; what it reaches is judged by itself.
    if pickled.fetched and pickled.fetched <= needed():
        names -= _GETATTR
    return sorted(names)


def _runs_code(name: Global) -> bool:
    if _WHOLE_OBJECT.fullmatch(f"{name.module} {name.name}"):
        return False
    return name.module.partition(".")[0] in _ROOTS or any(_found(_pickle_of(reading)) for reading in _readings(name))


def _readings(name: Global) -> Iterator[Global]:
    """What picklescan is asked for: ``hub.os.system`` of a module is ``os.system`` too."""
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
