"""Whether a file wraps a model with what another definition of the project gives, asked before any file is parsed."""

from __future__ import annotations

import ast
from collections import defaultdict

from fsdp_rules.fsdp1.names import FSDP, canonical, expand
from fsdp_rules.project.aliases import text_of
from fsdp_rules.project.project import Project
from fsdp_rules.project.walking import walk


def spelled(project: Project) -> tuple[bytes, ...]:
    """What a file that wraps a model has in its bytes, one at least; any file has what is not ASCII."""
    return tuple(name.encode() if name.isascii() else b"" for name in project.names.spellings(FSDP))


def is_fed(source: bytes, project: Project, path: str, marks: tuple[bytes, ...]) -> bool:
    """Whether a wrap in ``source`` is given what a function of the project returns, or a name that it imports."""
    if not any(name in source for name in marks):
        return False
    aliases = project.aliases(path)
    tree = ast.parse(source)
    own = {entry.name for entry in tree.body if isinstance(entry, ast.FunctionDef)}
    nodes = [node for node in walk(tree) if isinstance(node, ast.Call | ast.Assign)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]

    made = defaultdict(list)
    for call in calls:
        made[canonical(project.resolve(expand(text_of(call.func) or "", aliases)))].append(call)
    wraps = made[FSDP]
    if not wraps:
        return False
    given = [value for call in wraps for value in (*call.args[1:], *(keyword.value for keyword in call.keywords))]
    names = [value.id for value in given if isinstance(value, ast.Name)]
    of_module = {name for entry in tree.body if isinstance(entry, ast.Assign) for name in _targets(entry)}
    if any(names.count(name) > 1 for name in of_module.intersection(names)):
        return True
    named = set(names)
    values = [node.value for node in nodes if isinstance(node, ast.Assign) and named and _targets(node) & named]
    # What a CustomPolicy is made of gives each unit its arguments.
    asked = [value for call in made["CustomPolicy"] for value in (*call.args, *(one.value for one in call.keywords))]
    for node in (*given, *values, *asked):
        text = text_of(_named(node))
        root = (text or "").partition(".")[0]
        if (
            text in own
            or isinstance(_named(node), ast.Attribute)
            or (root in aliases and not aliases[root].startswith("torch."))
        ):
            return True
        if text is not None and root not in aliases and any(path == starring for _, starring, _ in project.stars):
            return True
    return False


def _named(node: ast.expr) -> ast.expr:
    """What names the definition that gives ``node``: the function that is called, the dictionary that is looked up."""
    if isinstance(node, ast.Call):
        return node.func
    return node.value if isinstance(node, ast.Subscript) else node


def _targets(node: ast.Assign) -> set[str]:
    return {entry.id for target in node.targets for entry in walk(target) if isinstance(entry, ast.Name)}
