"""Programs that are left whole: none of their wraps is rewritten, so that the rest of their code still runs FSDP1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fsdp_rules.engine.registry import all_rules
from fsdp_rules.project.project import Project
from fsdp_rules.verdict.finding import Finding, Level


def left_whole(project: Project, findings: Iterable[Finding]) -> Project | None:
    """``project`` with the programs that keep FSDP1: one wrap is left to be rewritten by hand, and none is rewritten.

    None where there is no such program.

    ``findings`` are those of all its files. Half a migration does not run: FSDP2's calls fail, or silently do
    nothing, on the models of FSDP1 that stay.
    """
    about_wraps = {rule.id for rule in all_rules() if rule.is_wrap}
    wraps = [one for one in findings if one.rule in about_wraps]
    by_hand = [one for one in wraps if one.level is Level.MANUAL]
    rewritten = frozenset(one.path for one in wraps if one.level in (Level.SAFE, Level.REVIEW))
    said = sorted((one.path, one.line, one.message, one.advice) for one in by_hand)
    places = tuple((path, f"{path}:{line}", message, advice) for path, line, message, advice in said)
    kept = replace(project.kept, by_hand=places, rewritten=rewritten)
    return replace(project, kept=kept) if any(kept.left_by(one[0]) for one in places) else None
