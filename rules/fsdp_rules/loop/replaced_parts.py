"""Rule for modules and parameters that are exchanged or added once the model is sharded."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from fsdp_rules.file.attribute_names import ANY
from fsdp_rules.file.expressions import last_name
from fsdp_rules.file.file import File
from fsdp_rules.loop._new_parts import NewPart, assigned, exchanged
from fsdp_rules.model.ending_units import unit_by_class
from fsdp_rules.model.flowing import known_as
from fsdp_rules.model.settings_objects import is_of_settings
from fsdp_rules.model.sharded import sharded, sharded_part, wrapper_of
from fsdp_rules.model.summoned import is_summoned
from fsdp_rules.project.parts import Part
from fsdp_rules.project.project import Certainty
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level
from fsdp_rules.verdict.rule import Rule
from fsdp_rules.verdict.what_to_test import EFFECT

#: What gives a part to the object itself, where FSDP1's wrapper passes other methods on to its model.
SETS = frozenset({"add_module", "register_module", "register_parameter", "setattr"})
#: Attributes of the wrapper that other rules speak about, or that no number depends on.
OTHERS = frozenset({"device", "forward", "module"})
OWN = "FSDP2 now uses this new, unsharded part (FSDP1 set it only on the wrapper)"
PLAIN = "the new part is not sharded: optimizers and clipping cannot mix it with DTensors"
READ = "FSDP2's model now reads this {name}, which FSDP1 set only on the wrapper"
ASSUMED = "assumes the model does not read {name} itself, which FSDP1 set only on the wrapper"
BEFORE = "to keep the numbers, remove the line; to get the intended behaviour, keep it"
ADVICE = "change the parts of the model before it is sharded, or shard the new part with fully_shard and the same mesh"


class ReplacedParts(Rule):
    """Parts that are replaced after sharding.

    FSDP1's wrapper stores a new attribute on itself, so `model.head = ...` replaces nothing in the model inside it. An
    FSDP2 model is the model itself, and uses the new part. Under both, a part added to one of its modules is neither
    sharded nor reduced. FSDP2's other parameters are DTensors: foreach functions, clipping and some optimizers raise if
    they get both kinds. A part without parameters, or a plain value, matters if the model itself reads it. Each unit
    that a policy selects has a wrapper too, which stores `self.head.margin = ...` on itself, also in the model's own
    methods and properties. Weight norm, parametrizations and pruning need a module's full parameters, so apply them
    before sharding.
    """

    id = "FSDP229"
    name = "replaced-parts"
    what_to_test = EFFECT
    visits = (cst.Assign, cst.AnnAssign, cst.AugAssign, cst.Call)
    shim = True
    before = """
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

def build(model, classes):
    model = FSDP(model, use_orig_params=True)
    model.head = nn.Linear(64, classes)
    return model
"""
    after = """
import torch.nn as nn
from torch.distributed.fsdp import fully_shard

def build(model, classes):
    fully_shard(model)
    # TODO(fsdp-migrate FSDP229): FSDP2 now uses this new, unsharded part (FSDP1 set it only on the wrapper)
    model.head = nn.Linear(64, classes)
    return model
"""

    def visit(self, node: cst.Assign | cst.AnnAssign | cst.AugAssign | cst.Call, file: File) -> Iterable[Diagnosis]:
        """Assignments to a sharded model and to its parts, and calls that exchange some."""
        if "fsdp1" not in file.project.flags:
            return
        if isinstance(node, cst.Call):
            new, is_set = exchanged(node, file), last_name(node.func) in SETS
        else:
            new, is_set = assigned(node, file), not isinstance(_target(node), cst.Subscript)
        unit = Certainty.NO if new is None else unit_by_class(new.owner, file)
        held = Certainty.NO if new is None or is_summoned(node, file) else max(sharded_part(new.owner, file), unit)
        if new is None or held is Certainty.NO:
            return
        if held is Certainty.MAYBE and is_of_settings(new.owner, file):
            return
        # What the module inside is given was the model's own under FSDP1, too.
        inner = wrapper_of(new.owner, file) is not None
        own = is_set and not inner and max(sharded(new.owner, file).certainty, unit) is not Certainty.NO
        place = node if isinstance(node, cst.Call) else _target(node)
        of_what = "model is sharded" if unit is Certainty.NO else "part is a unit"
        condition = "" if held is Certainty.YES else f"if this {of_what}: "
        if new.part is Part.HOLDS and not known_as("kept_part", new.value, file):
            yield Diagnosis(place, Level.MANUAL, f"{condition}{OWN if own else PLAIN}", ADVICE)
        elif own and new.pattern:
            yield from _named_by_text(new, place, held, condition, file)
        elif own and new.name and new.name not in OTHERS and _read_like(re.escape(new.name), file):
            made = held is Certainty.YES
            level = Level.MANUAL if made else Level.REVIEW
            yield Diagnosis(place, level, f"{condition}{READ.format(name=new.name)}", BEFORE)
        elif own and _may_be_read(new, node, file):
            yield Diagnosis(place, Level.REVIEW, f"{condition}{ASSUMED.format(name=new.name or 'it')}", BEFORE)


def _named_by_text(
    new: NewPart, place: cst.CSTNode, held: Certainty, condition: str, file: File
) -> Iterator[Diagnosis]:
    """The verdict about ``setattr`` with a name that is no literal: one that the model reads, or that may be one."""
    read = _read_like(new.pattern, file)
    if read is None:
        return
    if ANY not in new.pattern:
        level = Level.MANUAL if held is Certainty.YES else Level.REVIEW
        yield Diagnosis(place, level, f"{condition}{READ.format(name=read)}", BEFORE)
    elif held is Certainty.YES:
        yield Diagnosis(place, Level.REVIEW, ASSUMED.format(name="an attribute of this name"), BEFORE)


def _read_like(pattern: str, file: File) -> str | None:
    """The first attribute whose whole name fits ``pattern``, and that a module of the tree reads of itself."""
    fits = re.compile(pattern).fullmatch
    read = (names for path, names in file.project.values.read.items() if path not in file.project.apart)
    found = (name for names in read for name in names if fits(name))
    return min(found, default=None) or file.project.parts.read_like(pattern)


def _target(node: cst.Assign | cst.AnnAssign | cst.AugAssign) -> cst.BaseExpression:
    return node.targets[0].target if isinstance(node, cst.Assign) else node.target


def _may_be_read(new: NewPart, node: cst.CSTNode, file: File) -> bool:
    """Whether a model may use what it is given here: a module without parameters, or a setting of transformers."""
    if new.part is Part.PLAIN:
        return True
    calls = file.inside(node, cst.Call) if new.part is Part.NONE else []
    return any((file.resolved(call.func) or "").startswith("transformers.") for call in calls)
