"""What no rule spoke about: every FSDP1 reference of a file gets a verdict, known or not."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fsdp_rules.beyond.unknown import UnknownUse
from fsdp_rules.diagnosis import Diagnosis
from fsdp_rules.finding import Level
from fsdp_rules.names import CONFIG_NAMES, POLICY_NAMES
from fsdp_rules.rule import Rule
from fsdp_rules.source import File

#: How far above a reference the verdict that speaks for it may stand (``FSDP`` in ``FSDP.apply(...)``).
REACH = 3


def unclaimed(file: File, diagnoses: list[Diagnosis]) -> Iterator[tuple[Rule, Diagnosis]]:
    """A verdict of level manual for each FSDP1 reference that none of ``diagnoses`` accounts for."""
    claimed: set[cst.CSTNode] = set()
    for diagnosis in diagnoses:
        claimed.add(diagnosis.node)
        claimed.update(diagnosis.claims)
        claimed.update(edit.node for edit in diagnosis.edits)
    collector = _References(file)
    file.module.visit(collector)
    rule = UnknownUse()
    for node, known in collector.found:
        if node in claimed or any(entry in claimed for entry in _near(file, node)):
            continue
        yield rule, Diagnosis(node, Level.MANUAL, rule.message(known), rule.advice(known))


def _near(file: File, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for distance, ancestor in enumerate(file.ancestors(node)):
        if distance >= REACH or isinstance(ancestor, cst.BaseStatement):
            return
        yield ancestor


class _References(cst.CSTVisitor):
    """Every name or attribute chain that stands for something of FSDP1, imports and plain configuration left out."""

    def __init__(self, file: File) -> None:
        self.file = file
        self.found: list[tuple[cst.CSTNode, str]] = []

    def _add(self, node: cst.CSTNode) -> bool:
        known = self.file.fsdp1(node)
        if known is None:
            return True
        if known.split(".")[0] not in CONFIG_NAMES | POLICY_NAMES:
            self.found.append((node, known))
        return False

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        return self._add(node)

    def visit_Name(self, node: cst.Name) -> bool:
        parent = self.file.parent(node)
        if isinstance(parent, cst.Attribute) and parent.attr is node:
            return False
        if isinstance(parent, cst.Arg | cst.Param) and getattr(parent, "keyword", None) is node:
            return False
        return self._add(node)

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False
