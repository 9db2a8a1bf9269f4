"""The results of a tree from which FSDP1's branches are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from fsdp_rules.engine.registry import in_charge
from fsdp_rules.engine.rewrite import why_not_compiled
from fsdp_rules.retire.retire import Note, retired
from fsdp_rules.verdict.finding import Finding
from fsdp_rules.verdict.result import Changed, Failed, Result, Unchanged
from fsdp_rules.verdict.rule import Role


def without_fsdp1(files: Mapping[str, bytes], others: Callable[[], Iterable[tuple[str, bytes]]]) -> dict[str, Result]:
    """What becomes of each of ``files``; ``others`` gives the path and the bytes of every file of the tree,
    of which YAML files may have findings."""
    found = retired(files, others)
    results: dict[str, Result] = {}
    for path in dict.fromkeys([*files, *found]):
        one = found.get(path)
        if one is None:
            results[path] = Unchanged()
            continue
        findings = tuple(_finding(path, note) for note in sorted(one.notes, key=lambda note: note.line))
        data = files.get(path)
        if data is None:
            results[path] = Unchanged(findings)
            continue
        problem = why_not_compiled(one.text, path)
        if problem is not None:
            results[path] = Failed(f"internal error: without FSDP1's branches it does not compile ({problem})")
        else:
            source = one.text.encode()
            results[path] = Changed(source, findings) if source != data else Unchanged(findings)
    return results


def _finding(path: str, note: Note) -> Finding:
    rule = in_charge(Role.WRAP)
    return Finding(
        rule=rule.id,
        name=rule.name,
        path=path,
        line=note.line,
        column=0,
        end_line=note.line,
        end_column=0,
        level=note.level,
        message=note.message,
        advice=note.advice,
    )
