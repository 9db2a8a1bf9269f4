"""Whether the modules that a model is made of may bring a BatchNorm of the project's own."""

from __future__ import annotations

from fsdp_rules.project.project import Project


def may_have_batchnorm(project: Project, path: str, scope: str) -> bool:
    """Whether a file that the model of ``scope`` comes through names BatchNorm, or what its class imports does."""
    site, values = (path, scope), project.values
    through = {path, *(origin for origin, _ in values.through.get(site, ()))}
    made = values.makers.get(site, frozenset()) - {path}
    return not (project.own_batchnorm.isdisjoint(through) and project.batchnorm.isdisjoint(made))
