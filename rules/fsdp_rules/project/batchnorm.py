"""Whether the modules that a model is made of may bring a BatchNorm of the project's own."""

from __future__ import annotations

from fsdp_rules.project.places import module_name
from fsdp_rules.project.project import Project


def may_have_batchnorm(project: Project, path: str, scope: str) -> bool:
    """Whether a file that the model of ``scope`` comes through names BatchNorm, or what its class imports does."""
    through = {path, *(origin for origin, _ in project.origins.get((path, scope), ()))}
    if not project.own_batchnorm.isdisjoint(through):
        return True
    modules = [module_name(one) for one in project.batchnorm]
    for caller, name in project.makers.get((path, scope), ()):
        root, _, rest = name.partition(".")
        imported = project.aliases(caller).get(root)
        made = project.resolve(f"{imported}.{rest}".rstrip(".") if imported else name)
        home = made.rpartition(".")[0]
        if home and any(module == home or module.endswith(f".{home}") for module in modules):
            return True
    return False
