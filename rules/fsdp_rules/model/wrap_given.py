"""What the wraps that a model comes from are given: the one question of all rules, to the values of the tree."""

from __future__ import annotations

import re
from dataclasses import dataclass

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.fsdp1.strategy_names import ZERO2
from fsdp_rules.model.flowing import value_of
from fsdp_rules.project.project import Certainty
from fsdp_rules.project.value_facts import NONE, UNKNOWN, Place

IGNORED = ("ignored_modules", "ignored_states", "ignored_parameters")
#: The first torch in which fully_shard ignores parameters; before, fsdp_compat does.
IGNORED_PARAMS = (2, 7)
#: Texts of arguments that are the same as none.
_NOTHING = frozenset({NONE, "[]", "False"})
_ENUM = "ShardingStrategy."
_DTYPES = {"torch.half": "torch.float16", "torch.float": "torch.float32"}
#: The first torch in which fsdp_compat accumulates in the dtype of the reduction as well.
AS_REDUCED = (2, 15)


@dataclass(frozen=True)
class WrapGiven:
    """What each argument may be at the wraps ``sites``; without any, nothing is known."""

    sites: tuple[Place, ...]
    file: File

    def texts(self, name: str) -> frozenset[str]:
        """The texts of an argument, as :class:`ValueFacts` has them; of a field of one behind a dot."""
        found: set[str] = set()
        for wrap in [self.file.project.values.wraps.get(site) for site in self.sites] or [None]:
            of = frozenset({UNKNOWN}) if wrap is None else wrap[name.partition(".")[0]]
            # A field is that of an object: where none is given it is not.
            found |= (wrap or {}).get(name, {NONE}) | (of & {UNKNOWN})
        return frozenset(found)

    @property
    def strategies(self) -> frozenset[str]:
        """The names of the sharding strategies, and :data:`UNKNOWN`."""
        found = self.texts("sharding_strategy")
        return frozenset("FULL_SHARD" if one == NONE else one.removeprefix(_ENUM) for one in found)

    def stays_gathered(self) -> Certainty:
        """How sure it is that FSDP1 keeps the model gathered after forwards, and after backwards that reduce nothing.

        Under NO_SHARD nothing is ever gathered.
        """
        return _among(self.strategies, ZERO2, "keeps_gathered", self.file, ZERO2 | {"NO_SHARD"})

    def is_whole(self) -> Certainty:
        """How sure it is that every rank has the parameters whole, as under NO_SHARD."""
        whole = frozenset({"NO_SHARD"})
        return _among(self.strategies, whole, "unsharded", self.file, whole)

    def keeps_originals(self) -> Certainty:
        """How sure it is that ``use_orig_params`` is True."""
        found = self.texts("use_orig_params")
        return Certainty.NO if found <= _NOTHING else Certainty.YES if found == {"True"} else Certainty.MAYBE

    def keeps_frozen(self) -> Certainty:
        """How sure it is that gradients are kept that a backward finds as it runs through the model frozen.

        FSDP1 does with flat parameters that are sharded, and with the original ones where it keeps a unit gathered.
        """
        originals, gathered = self.keeps_originals(), self.stays_gathered()
        flat = Certainty.NO if "NO_SHARD" in self.strategies else Certainty.YES
        flat = Certainty.MAYBE if UNKNOWN in self.strategies else flat
        if originals is Certainty.MAYBE:
            return min(max(flat, gathered), Certainty.MAYBE)
        return gathered if originals is Certainty.YES else flat

    def accumulates_wider(self) -> Certainty:
        """How sure it is that gradients are reduced in another dtype than computed in, so that FSDP2 rounds less.

        FSDP2 accumulates in the dtype of the reduction what it does not reduce, FSDP1 in that of the computation.
        """
        computed, reduced = (self.texts(f"mixed_precision.{name}") for name in ("param_dtype", "reduce_dtype"))
        if UNKNOWN in computed | reduced:
            return Certainty.MAYBE if "mixed_precision" in self.file.project.flags else Certainty.NO
        computed, reduced = (frozenset(_DTYPES.get(one, one) for one in several) for several in (computed, reduced))
        if reduced == {NONE} or (computed == reduced and len(computed) == 1):
            return Certainty.NO
        known = computed - {NONE}, reduced - {NONE}
        return Certainty.YES if all(known) and known[0].isdisjoint({*reduced, "torch.float32"}) else Certainty.MAYBE

    def has_several_meshes(self) -> bool:
        """Whether parts of the model may be sharded over other ranks than the rest of it."""
        frames = {(site[0], site[2]) for site in self.sites if len(site) > 2}
        return not frames.isdisjoint(self.file.project.values.over_several_meshes)

    def offloads(self) -> Certainty:
        """How sure it is that parameters are offloaded to the CPU."""
        given = self.gives("offload", "cpu_offload")
        return min(given, self.gives("offload", "cpu_offload.offload_params"))

    def gives(self, flag: str, *names: str) -> Certainty:
        """How sure it is that one of the arguments ``names`` has something in it.

        ``flag`` says whether any file of the project has such an argument; where it is not known, that decides.
        """
        found = {text for name in names for text in self.texts(name)} - _NOTHING
        if UNKNOWN in found:
            return Certainty.MAYBE if flag in self.file.project.flags else Certainty.NO
        return Certainty.YES if found else Certainty.NO


def wrap_given(model: cst.BaseExpression | None, file: File) -> WrapGiven:
    """What the wraps that ``model`` comes from are given."""
    return WrapGiven(value_of(model, file).origins if model is not None else (), file)


def may_give(name: str, file: File) -> bool:
    """Whether some wrap of the file may be given the argument ``name``."""
    wraps = [one for place, one in file.project.values.wraps.items() if place[0] == file.path]
    return not wraps or any(one[name] != {NONE} for one in wraps)


def _among(
    found: frozenset[str], some: frozenset[str], flag: str, file: File, surely: frozenset[str] = frozenset()
) -> Certainty:
    """How sure it is that what is ``found`` is one of ``some``: YES where all of it is among ``surely``."""
    if UNKNOWN in found and found.isdisjoint(some):
        return Certainty.MAYBE if flag in file.project.flags else Certainty.NO
    return Certainty.NO if found.isdisjoint(some) else Certainty.YES if found <= surely else Certainty.MAYBE


#: The argument, as a keyword or a key, and what it is given.
WRITTEN = re.compile(rb"\buse_orig_params\b[\"']?\s*[=:]\s*(\w+)|\buse_orig_params\b")


def flattened(model: cst.BaseExpression | None, file: File) -> Certainty:
    """How sure it is that the wrap that ``model`` comes from has flat parameters.

    Where the wrap is not known, or given what is not written in it, the files of the project decide.
    """
    given = wrap_given(model, file)
    if UNKNOWN not in given.texts("use_orig_params"):
        return Certainty(Certainty.YES - given.keeps_originals())
    written = {found.group(1) for source in file.project.sources.values() for found in WRITTEN.finditer(source)}
    if written <= {b"True"}:
        return Certainty.NO if written else Certainty.YES
    return Certainty.YES if written == {b"False"} else Certainty.MAYBE
