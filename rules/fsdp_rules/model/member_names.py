"""Names by which models give their parameters and modules, and the tables that have some."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.file.once import once
from fsdp_rules.file.other_files import other_file
from fsdp_rules.model.flowing import value_of
from fsdp_rules.model.sharded import sharded_names
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.value_facts import NameSource, Position


class Named(NamedTuple):
    """What a name was given by: ``model``, None in another file, and how sure it is that FSDP1's have prefixes.

    ``call`` is what gave it, None in another file.
    ``is_gathered``: while full parameters were gathered, which takes the prefixes of the wrapper itself off.
    ``is_compared``: as :class:`NameSource` has it. ``origin``: the model in the file that takes names of it.
    """

    model: cst.BaseExpression | None
    held: Certainty
    is_gathered: bool
    is_compared: bool = True
    call: cst.Call | None = None
    origin: tuple[cst.BaseExpression, File] | None = None


def prefixed(node: cst.BaseExpression, file: File) -> Named | None:
    """The model that ``node`` is a name of where FSDP1's had prefixes; None for any other expression."""
    return _joined([one for one in names_of(node, file) if not one.is_gathered])


def prefixed_in(node: cst.BaseExpression, file: File) -> Named | None:
    """As :func:`prefixed`, of the names with which ``node`` compares what is looked up in it."""
    return _joined([one for one in names_in(node, file) if one.is_compared and not one.is_gathered])


def names_of(node: cst.BaseExpression, file: File) -> list[Named]:
    """What ``node`` may be a name of."""
    return list(_named(file.project.values.names, node, file))


def names_in(node: cst.BaseExpression, file: File) -> list[Named]:
    """What ``node`` may have names of, as elements or as keys."""
    return list(_named(file.project.values.tables, node, file))


def _joined(found: list[Named]) -> Named | None:
    """What is surest: a name that one caller takes of a sharded model is one, whatever another caller gives."""
    best = max(found, key=lambda one: one.held, default=None)
    return None if best is None or best.held is Certainty.NO else best


def _named(
    known: Mapping[str, Mapping[Position, tuple[NameSource, ...]]], node: cst.BaseExpression, file: File
) -> Iterator[Named]:
    sources = known.get(file.path, {}).get(file.span(node), ()) if file.layout.has(node) else ()
    for source in sources:
        home = file if source.path == file.path else other_file(source.path, file)
        call = _calls(home.module, home).get(source.position) if home is not None else None
        taken = call.func.value if call is not None and isinstance(call.func, cst.Attribute) else None
        origin = (taken, home) if taken is not None and home is not None else None
        own = call if home is file else None
        model = taken if home is file else None
        is_gathered = source.is_gathered or (own is not None and is_summoned(own, file))
        yield Named(model, _held(model, source.is_sharded, file), is_gathered, source.is_compared, own, origin)


def _held(model: cst.BaseExpression | None, is_sharded: bool, file: File) -> Certainty:
    """How sure it is that a name of ``model`` had a prefix; ``is_sharded``: that model is known to be sharded there."""
    if model is None or (not is_sharded and value_of(model, file).model is not Certainty.NO):
        return Certainty.YES if is_sharded else Certainty.NO
    return sharded_names(model, file)


@once
def _calls(module: cst.Module, file: File) -> dict[Position, cst.Call]:
    return {file.span(call): call for call in file.nodes(cst.Call)}
