"""Names of FSDP1 that a file imports for other files alone, once those other files no longer import them from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fsdp_rules.fsdp1.names import canonical
from fsdp_rules.project.facts import Imports, imports_in
from fsdp_rules.project.places import module_name
from fsdp_rules.project.project import Project


def released_by(path: str, project: Project) -> frozenset[str]:
    """The names of FSDP1 that other files imported from the file at ``path``, and no longer do."""
    entries = (entry.rsplit(".", 2) for entry in project.released)
    return frozenset(entry[-1] for entry in entries if entry[-2] == _last(module_name(path)))


def released(
    project: Project, before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> tuple[Project, frozenset[str]]:
    """``project`` as the sources ``after`` a rewrite import, and the files that may now drop imports of FSDP1's names.

    ``before`` are the sources that were rewritten; both are by path.
    """
    if not _may_be_served(project, after):
        return project, frozenset()
    old, new = (_imports({path: one[path] for path in after if after[path] != before[path]}) for one in (before, after))
    changed = [path for path in new if path in old]
    gone = {entry for path in changed for entry in old[path].imported - new[path].imported}
    gone = {entry for entry in gone & project.imported if canonical(project.resolve(entry)) is not None}
    reads = {path: new[path].reads for path in changed}
    stars = tuple((module, path, reads.get(path, names)) for module, path, names in project.stars)
    starred = {
        f"{module}.{name}"
        for (module, _, names), (_, _, kept) in zip(project.stars, stars, strict=True)
        for name in names - kept
        if canonical(project.resolve(f"{module}.{name}")) is not None
    }
    if not gone and not starred:
        return project, frozenset()
    everywhere = {**_imports({path: after[path] for path in after if path not in new}), **new}
    gone = gone.difference(*(imports.imported for imports in everywhere.values()))
    modules = {_last(entry.rpartition(".")[0]) for entry in gone | starred}
    paths = frozenset(path for path in after if _last(module_name(path)) in modules)
    return replace(
        project, imported=project.imported - gone, stars=stars, released=project.released | gone | starred
    ), paths


def _may_be_served(project: Project, paths: Iterable[str]) -> bool:
    """Whether any file imports names of FSDP1 from one of ``paths``; without parsing any of them."""
    named = (entry for entry in project.imported if canonical(project.resolve(entry)) is not None)
    modules = {_last(entry.rpartition(".")[0]) for entry in named} | {_last(module) for module, _, _ in project.stars}
    return any(_last(module_name(path)) in modules for path in paths)


def _imports(sources: Mapping[str, bytes]) -> dict[str, Imports]:
    found = ((path, imports_in(path, data)) for path, data in sources.items())
    return {path: imports for path, imports in found if imports is not None}


def _last(module: str) -> str:
    return module.rpartition(".")[2]
