"""A project as one file of it sees it: what is found by bare names and words alone is that of its own programs."""

from __future__ import annotations

from dataclasses import replace

from fsdp_rules.project.project import Project
from fsdp_rules.project.told import by_name, called_values, words


def seen_from(project: Project, path: str) -> Project:
    """``project`` without what files say that no program runs together with the file at ``path``."""
    apart = project.owners.programs.apart_from(path)
    if apart == project.apart:
        return project
    if apart not in project.views:
        told = [one for one in project.told if one.path not in apart]
        renamed = "fsdp1" in project.tree_flags - words(project.told)
        project.views[apart] = replace(
            project,
            apart=apart,
            flags=project.twins.flags(words(told) | (project.tree_flags & {"bounded"}), renamed),
            sources={one: source for one, source in project.sources.items() if one not in apart},
            takes={site: given for site, given in project.takes.items() if site[0] not in apart},
            entered=project.entered.without(apart, called_values(told)),
            **by_name(told),
        )
    return project.views[apart]
