"""What no rule spoke about: every FSDP1 reference of a file gets a verdict, known or not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import libcst as cst

from fsdp_rules.beyond._unknown_names import advice, handed_on, message
from fsdp_rules.engine.registry import in_charge
from fsdp_rules.file.file import File, dotted
from fsdp_rules.file.reads import is_read_whole
from fsdp_rules.fsdp1.methods import COMMON, OWN
from fsdp_rules.fsdp1.names import CONFIG_NAMES, FSDP, POLICY_NAMES, PUBLIC_MODULES, canonical
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.sharded import sharded
from fsdp_rules.project.facts import aliases_in
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.value_facts import NONE
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Role, Rule

#: How far above a reference the verdict that speaks for it may stand (``FSDP`` in ``FSDP.apply(...)``).
REACH = 3
#: What does nothing before a wrapped model is made of it.
VALUES = (CONFIG_NAMES | POLICY_NAMES) - {"enable_wrap", "wrap"}
SPELLED = re.compile("|".join(sorted(VALUES)))
STRATEGY = "ShardingStrategy"
#: What may be given one of them in the output, other than ``fsdp_compat.shard``.
WRITTEN = re.compile(r"\bfully_shard\b")
#: A policy stays a function, which a rewritten wrap asks, and a kind of state is judged where the state is.
HARMLESS = (CONFIG_NAMES | POLICY_NAMES) - {"BackwardPrefetch", "CPUOffload", "MixedPrecision", STRATEGY}
STAYS = "this file still has FSDP1 values, assuming no rewritten call gets one at run time"
REMOVE = "keep the ones that a wrap in another file uses; remove the others and the code that reads them"
READ = "this file still has FSDP1 values, which also work under FSDP2"
TAKEN = "this file still has FSDP1 values, assuming only fsdp_compat.shard, which accepts them, gets one"
ACCEPTED = "this file still has FSDP1 values, which fsdp_compat.shard accepts"
KEEP = "keep the ones that fsdp_compat.shard uses; remove the others and the code that reads them"


def unclaimed(file: File, diagnoses: list[Diagnosis]) -> Iterator[tuple[Rule, Diagnosis]]:
    """A verdict of level manual for each FSDP1 reference that none of ``diagnoses`` accounts for."""
    claimed: set[cst.CSTNode] = set()
    for diagnosis in diagnoses:
        claimed.add(diagnosis.node)
        claimed.update(diagnosis.claims)
        claimed.update(edit.node for edit in diagnosis.edits)
    rule = in_charge(Role.UNKNOWN)
    for node, known in (*_references(file), *_methods(file)):
        if known.split(".")[0] in CONFIG_NAMES | POLICY_NAMES:
            continue
        if node in claimed or any(entry in claimed for entry in _near(file, node)):
            continue
        if known == FSDP and isinstance(node, cst.Name | cst.Attribute) and known_as("only_called", node, file):
            yield rule, handed_on(node, file)
        else:
            yield rule, Diagnosis(node, Level.MANUAL, message(known), advice(known))


def staying(file: File, diagnoses: Sequence[Diagnosis], output: str) -> Iterator[tuple[Rule, Diagnosis]]:
    """One verdict that names the values of torch's FSDP1 in ``output`` at whose statements nothing else is said."""
    rule = in_charge(Role.IMPORTS)
    if not SPELLED.search(output) or not file.settings.enabled(rule.id):
        return
    kept = {canonical(file.project.resolve(full)) for full in aliases_in(file.path, output).values()}
    spoken = {file.statement(entry.node) for entry in diagnoses if entry.level is not Level.SAFE}
    found = [
        (node, name)
        for node, known in _references(file)
        if (name := known.split(".")[0]) in VALUES
        and (name in kept or _is_reached_through_module(node, file))
        and file.code(node) in output
        and file.statement(node) not in spoken
        and not file.suppressions.ignored(rule.id, node)
    ]
    found += [entry for entry in _chosen(file) if file.statement(entry[0]) not in spoken]
    # What is kept beside FSDP2's branches is said once for the file.
    found = [entry for entry in found if file.suppressions.gated(entry[0]) is not True]
    if found:
        names = ", ".join(sorted({name for _, name in found}))
        first = min(found, key=lambda entry: file.span(entry[0]).line)[0]
        takes = "fsdp_compat.shard" in output
        judged = HARMLESS if takes or not _gets_strategies(file) else HARMLESS | {STRATEGY}
        # What no wrap of the tree is given may go to a framework's strategy.
        are_read = bool(file.project.values.wraps) and judged.issuperset(name for _, name in found)
        if are_read or (takes and _has_all_wraps(file) and not WRITTEN.search(output)):
            yield rule, Diagnosis(first, Level.INFO, f"{names}: {READ if are_read else ACCEPTED}")
        else:
            text, remedy = (TAKEN, KEEP) if takes else (STAYS, REMOVE)
            yield rule, Diagnosis(first, Level.REVIEW, f"{names}: {text}", remedy)


def _has_all_wraps(file: File) -> bool:
    """Whether the tree wraps in ``file`` alone."""
    return {path for path, *_ in file.project.values.wraps} == {file.path}


def _gets_strategies(file: File) -> bool:
    """Whether some wrap of the tree is given a strategy, which is judged there."""
    return any(wrap["sharding_strategy"] != {NONE} for wrap in file.project.values.wraps.values())


def _chosen(file: File) -> Iterator[tuple[cst.Name, str]]:
    """Reads of names that branches import either from FSDP1 or from elsewhere: which it is, is not known here."""
    names = {
        alias.evaluated_alias or alias.evaluated_name: alias.evaluated_name
        for node in file.nodes(cst.ImportFrom)
        if node.module is not None
        and dotted(node.module) in PUBLIC_MODULES
        and not isinstance(node.names, cst.ImportStar)
        for alias in node.names
        if alias.evaluated_name in VALUES
    }
    for node in file.nodes(cst.Name):
        if node.value not in names or isinstance(file.parent(node), cst.Attribute):
            continue
        if file.fsdp1(node) is None and is_read_whole(node, file.layout):
            yield node, names[node.value]


def _is_reached_through_module(node: cst.CSTNode, file: File) -> bool:
    """Whether ``node`` spells out a module of torch (``fsdp.ShardingStrategy``), whose import stays what it is."""
    head = (dotted(node) or "").partition(".")[0]
    return canonical(file.project.resolve(file.aliases.get(head, ""))) is None


def _near(file: File, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    for distance, ancestor in enumerate(file.ancestors(node)):
        if distance >= REACH or isinstance(ancestor, cst.BaseStatement):
            return
        yield ancestor


def _references(file: File) -> Iterator[tuple[cst.CSTNode, str]]:
    """Every name or attribute chain that stands for something of FSDP1, imports left out."""
    for node in (*file.nodes(cst.Attribute), *file.nodes(cst.Name)):
        parent = file.parent(node)
        if isinstance(parent, cst.Attribute):
            continue
        known = file.fsdp1(node)
        if known is None or (isinstance(node, cst.Name) and not is_read_whole(node, file.layout)):
            continue
        if not any(isinstance(entry, cst.Import | cst.ImportFrom) for entry in file.ancestors(node)):
            yield node, known


def _methods(file: File) -> Iterator[tuple[cst.Attribute, str]]:
    """FSDP1's own methods of a sharded model, called or not: FSDP2's models have none of them."""
    for node in file.nodes(cst.Attribute):
        if node.attr.value not in OWN or file.fsdp1(node) is not None:
            continue
        found = sharded(node.value, file)
        # Of what may be a model, such a name says that it is one.
        may_be = found.certainty is Certainty.MAYBE and not found.is_excluded and node.attr.value not in COMMON
        if found.certainty is Certainty.YES or may_be:
            yield node, f"{FSDP}.{node.attr.value}"
