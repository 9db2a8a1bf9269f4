"""The modules of the models as a tree, for the page: which are units, and where the first difference is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fsdp_migrate.verify.recording.recording import Model
from fsdp_migrate.verify.report.facts import place
from fsdp_migrate.verify.verdict import Verdict


@dataclass
class Node:
    """One module with parameters below it. ``here``: the first difference is in it; ``what``: at it, and this is it."""

    label: str
    unit: bool
    parameters: int = 0
    here: bool = False
    what: str = ""
    children: dict[str, Node] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Node]:
        return iter(self.children.values())


def trees(verdict: Verdict) -> list[Node]:
    """One tree for each model, in the order of the run before; the way to the first difference is marked."""
    found = [_tree(model) for model in verdict.comparison.before.models]
    first = verdict.first
    if first is None:
        return found
    number, _, name = first.name.partition(":")
    if number.isdecimal() and int(number) < len(found):
        _mark(found[int(number)], name.split(".") if name else [], place(verdict, first))
    return found


def _tree(model: Model) -> Node:
    units = {unit["module"] for unit in model.units}
    root = Node(model.class_name, "" in units)
    for parameter in model.parameters:
        node, path = root, ""
        for part in parameter.names[0].split(".")[:-1]:
            path = f"{path}.{part}" if path else part
            node = node.children.setdefault(part, Node(part, path in units))
        node.parameters += 1
    return root


def _mark(node: Node, parts: list[str], what: str) -> None:
    node.here = True
    inner = node.children.get(parts[0]) if parts else None
    if inner is None:
        # What is left names a parameter of this module, or a module without any.
        node.what = what
    else:
        _mark(inner, parts[1:], what)
