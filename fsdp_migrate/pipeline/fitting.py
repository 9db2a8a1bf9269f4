"""Whether the hunks of a rewrite that were taken work without those that were left."""

from __future__ import annotations

import builtins
import symtable
import warnings
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from fsdp_rules.verdict.finding import Finding


def missing_names(before: bytes, text: bytes, after: bytes) -> list[str]:
    """Names of a file ``before`` or ``after`` its rewrite that only ``text`` reads without binding them.

    ``text`` has some of the rewrite's hunks; a name that only an edit brings in is the user's own. [] where one of the
    three does not parse.
    """
    try:
        tables = [_module(source) for source in (before, text, after)]
    except (SyntaxError, ValueError):
        return []
    old, chosen, new = map(_unbound, tables)
    known = {name for module in (tables[0], tables[2]) for table in _tables(module) for name in table.get_identifiers()}
    return sorted((chosen - old - new) & known)


def apart(taken: Sequence[Finding], left: Sequence[Finding], together: Collection[str]) -> list[Finding]:
    """Those of ``left`` that are about a model of ``taken``, or of which that is not known.

    Both count only with the rules ``together``, whose FSDP1 calls do not work on FSDP2's models, nor the reverse.
    """
    ends: dict[tuple[str, int], int] = defaultdict(int)
    for finding in (*taken, *left):
        key = (finding.path, finding.statement)
        ends[key] = max(ends[key], finding.end_line)
    moved = [_wrap(finding, ends) for finding in taken if finding.rule in together]
    return [
        finding
        for finding in left
        if finding.rule in together and any(_same(_wrap(finding, ends), wrap) for wrap in moved)
    ]


#: A file and the first and last line of a statement in it; None where it is not known.
_Wrap = tuple[str, int, int] | None


def _wrap(finding: Finding, ends: dict[tuple[str, int], int]) -> _Wrap:
    """Where the model of a finding is wrapped."""
    if finding.wrap is not None:
        path, line = finding.wrap
        return path, line, line
    # The rules about a wrap itself; a definition that several wraps share (FSDP123) belongs to no single one.
    if finding.rule.startswith("FSDP1") and finding.rule != "FSDP123" and finding.statement:
        return finding.path, finding.statement, ends[finding.path, finding.statement]
    return None


def _same(one: _Wrap, other: _Wrap) -> bool:
    if one is None or other is None:
        return True
    return one[0] == other[0] and one[1] <= other[2] and other[1] <= one[2]


def _module(source: bytes) -> symtable.SymbolTable:
    with warnings.catch_warnings():
        # What the compiler thinks of an escape in somebody's text.
        warnings.simplefilter("ignore")
        return symtable.symtable(source.decode("utf-8"), "module", "exec")


def _unbound(module: symtable.SymbolTable) -> set[str]:
    bound, read = set(dir(builtins)), set()
    for table in _tables(module):
        for symbol in table.get_symbols():
            is_module = table is module or symbol.is_declared_global()
            if is_module and (symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()):
                bound.add(symbol.get_name())
            if symbol.is_referenced() and (table is module or symbol.is_global()):
                read.add(symbol.get_name())
    return read - bound - {"__file__", "__name__", "__doc__", "__path__"}


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)
