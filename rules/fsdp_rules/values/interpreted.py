"""A tree that is interpreted to its end, file by file as something of FSDP1 reaches them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from fsdp_rules.project.programs import Programs
from fsdp_rules.values.callees import Callees
from fsdp_rules.values.derivations import Derivations
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.reached import reading_by_name, touched


def interpreted(
    sources: Mapping[str, bytes],
    start: Iterable[str],
    alone: Collection[str],
    importing: Callable[[Iterable[str]], Collection[str]],
    kept: Collection[tuple[str, int]],
    programs: Programs | None,
    why: Derivations | None,
) -> Interpreter | None:
    """What has run all that ``start``, ``alone`` and ``importing`` give, as :func:`by_position.facts_of` has them.

    None where the code is nested too deeply.
    """
    machine = Interpreter(sources, kept, programs, None if why is None else why.start())
    every = dict.fromkeys(alone)
    more: Collection[str] = list(start)
    known_files = -1
    try:
        while (more or known_files < len(every)) and not machine.modules.is_full:
            known_files = len(every)
            machine.run(more, every)
            importers = importing(touched(machine))
            ran = machine.modules.frames
            more = dict.fromkeys([*importers, *importing(Callees(machine).tables())])
            more = [path for path in more if path in sources and path not in ran]
            every.update(dict.fromkeys(importers))
            every.update(dict.fromkeys(reading_by_name(machine)))
        machine.is_bounded |= bool(more)
        machine.finish()
    except RecursionError:
        return None
    return machine
