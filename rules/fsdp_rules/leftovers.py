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
from fsdp_rules.type_places import is_read

#: How far above a reference the verdict that speaks for it may stand (``FSDP`` in ``FSDP.apply(...)``).
REACH = 3


def unclaimed(file: File, diagnoses: list[Diagnosis]) -> Iterator[tuple[Rule, Diagnosis]]:
    """A verdict of level manual for each FSDP1 reference that none of ``diagnoses`` accounts for."""
    claimed: set[cst.CSTNode] = set()
    for diagnosis in diagnoses:
        claimed.add(diagnosis.node)
        claimed.update(diagnosis.claims)
        claimed.update(edit.node for edit in diagnosis.edits)
    rule = UnknownUse()
    for node, known in _references(file):
        if node in claimed or any(entry in claimed for entry in _near(file, node)):
            continue
        yield rule, Diagnosis(node, Level.MANUAL, rule.message(known), rule.advice(known))


def _near(file: File, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for distance, ancestor in enumerate(file.ancestors(node)):
        if distance >= REACH or isinstance(ancestor, cst.BaseStatement):
            return
        yield ancestor


def _references(file: File) -> Iterator[tuple[cst.CSTNode, str]]:
    """Every name or attribute chain that stands for something of FSDP1, imports and plain configuration left out."""
    for node in (*file.nodes(cst.Attribute), *file.nodes(cst.Name)):
        parent = file.parent(node)
        if isinstance(parent, cst.Attribute):
            continue
        if isinstance(node, cst.Name) and not is_read(node, file):
            continue
        known = file.fsdp1(node)
        if known is None or known.split(".")[0] in CONFIG_NAMES | POLICY_NAMES:
            continue
        if not any(isinstance(entry, cst.Import | cst.ImportFrom) for entry in file.ancestors(node)):
            yield node, known
