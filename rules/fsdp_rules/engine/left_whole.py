"""Trees that are left whole: none of their wraps is rewritten, so that the rest of their code still runs FSDP1."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from fsdp_rules.engine.registry import all_rules
from fsdp_rules.project.project import Project
from fsdp_rules.verdict.finding import Finding, Level


def left_whole(project: Project, findings: Iterable[Finding]) -> Project | None:
    """``project`` as one that keeps FSDP1, None where a wrap is rewritten, or none is left to be rewritten by hand.

    ``findings`` are those of all its files. Half a migration does not run: FSDP2's calls fail, or silently do
    nothing, on the models of FSDP1 that stay.
    """
    about_wraps = {rule.id for rule in all_rules() if rule.is_wrap}
    wraps = [one for one in findings if one.rule in about_wraps]
    by_hand = [one for one in wraps if one.level is Level.MANUAL]
    if not by_hand or any(one.level in (Level.SAFE, Level.REVIEW) for one in wraps):
        return None
    first = min(by_hand, key=lambda one: (one.path, one.line))
    return replace(project, kept=replace(project.kept, by_hand=f"{first.path}:{first.line}"))
