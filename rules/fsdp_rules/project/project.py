"""Facts that cross files: what names may hold, and what else a tree says; a guess by a bare name is a "maybe"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.project.classes import Owners
from fsdp_rules.project.configured import Contract, Slot
from fsdp_rules.project.entered import Entered, Site, functions_by_name
from fsdp_rules.project.exports import Exports
from fsdp_rules.project.facts import FileFacts, index_source
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.given_words import Words
from fsdp_rules.project.hosted import Hosted
from fsdp_rules.project.importing import importing
from fsdp_rules.project.kept import Kept
from fsdp_rules.project.observed import Observed
from fsdp_rules.project.optimizer_origins import Optimizers
from fsdp_rules.project.own_keys import OwnKey
from fsdp_rules.project.parts import Parts
from fsdp_rules.project.places import INNER, module_name
from fsdp_rules.project.programs import Programs
from fsdp_rules.project.starred_names import with_starred
from fsdp_rules.project.told import Told, by_name, called_values, words
from fsdp_rules.project.twins import Source, Twins, twins
from fsdp_rules.project.value_facts import NOTHING, Fact, ValueFacts

__all__ = ["INNER", "Certainty", "FileFacts", "Project", "index_source", "module_name"]


@dataclass(frozen=True)
class Project:
    """The facts of a whole tree. ``methods`` are the names of all functions that the project defines inside a class
    (or a function), ``names`` what an imported name means. ``stars`` are the star imports: what is imported, the path
    of the file that does it, and the names that this file reads. ``owners`` are the classes, ``meta`` the functions in
    which the meta device is named, ``batchnorm`` the files that name BatchNorm (``own_batchnorm``) or import such a
    file, ``sources`` the files that speak of FSDP or states. ``optimizers`` the optimizers of all files, ``kept`` the
    models that stay FSDP1, ``fsdp2`` the functions that shard with ``fully_shard`` by their dotted names, ``taking``
    the paths of files that take or load a state under no setting of theirs, ``configured`` what definitions give to
    wraps in other places, ``entered`` what ran last where a function begins, ``takes`` parameters of functions,
    ``parts`` what calls make that a model is given, ``hosted`` modules of strategies, ``carried`` the wraps, by file
    and line, that keep gradients which other files clear, ``own`` keys of arguments that go, ``twins`` what FSDP2 has
    too, ``released`` imports of FSDP1's names that a rewrite took out of other files, ``words`` what asks hosts for
    FSDP1, ``values`` what expressions may be, ``observed`` what a run showed, ``told`` what files say by bare names,
    ``tree_flags`` the flags of all programs, where ``flags`` are those of the files that are ``apart`` from none:
    :func:`~fsdp_rules.project.seen.seen_from` leaves the others out."""

    flags: frozenset[str]
    names: Exports
    imported: frozenset[str]
    methods: frozenset[str] = field(default=frozenset())
    stars: tuple[tuple[str, str, frozenset[str]], ...] = field(default=())
    owners: Owners = field(default_factory=Owners)
    askers: dict[str, bool] = field(default_factory=dict)
    meta: frozenset[Site] = field(default=frozenset())
    batchnorm: frozenset[str] = field(default=frozenset())
    own_batchnorm: frozenset[str] = field(default=frozenset())
    sources: dict[str, bytes] = field(default_factory=dict)
    own: dict[str, tuple[OwnKey, ...]] = field(default_factory=dict)
    optimizers: Optimizers = field(default_factory=Optimizers)
    kept: Kept = field(default_factory=Kept)
    fsdp2: frozenset[str] = field(default=frozenset())
    taking: frozenset[str] = field(default=frozenset())
    configured: Mapping[Slot, Contract] = field(default_factory=dict)
    entered: Entered = field(default_factory=Entered)
    takes: Mapping[Site, tuple[str, ...]] = field(default_factory=dict)
    parts: Parts = field(default_factory=Parts)
    hosted: tuple[Hosted, ...] = ()
    carried: frozenset[tuple[str, int]] = frozenset()
    twins: Twins = field(default_factory=Twins)
    released: frozenset[str] = frozenset()
    words: Words = field(default_factory=Words)
    values: ValueFacts = field(default_factory=ValueFacts)
    observed: Observed = field(default_factory=Observed)
    told: tuple[Told, ...] = ()
    tree_flags: frozenset[str] = frozenset()
    apart: frozenset[str] = frozenset()

    @classmethod
    def build(
        cls,
        facts: Iterable[FileFacts],
        flags: Mapping[str, frozenset[str]] | None = None,
        batchnorm: frozenset[str] = frozenset(),
        programs: Programs | None = None,
    ) -> Project:
        """Join the facts of all files. ``flags``, by path, and ``batchnorm`` are of files that no model reaches."""
        files = sorted(facts, key=lambda fact: fact.path)
        files, names = with_starred(files)
        programs = programs or Programs()
        told = [*map(Told.of, files), *(Told(path, raised) for path, raised in (flags or {}).items())]
        chosen = twins((Source(one.path, one.choosing, one.wrapped) for one in files), words(told), names.resolve)
        owners = Owners.build(files, programs)
        raised = chosen.flags(words(told), False)
        return cls(
            flags=raised,
            tree_flags=raised,
            told=tuple(told),
            **by_name(told),
            twins=chosen,
            names=names,
            imported=frozenset().union(*(file.imported for file in files)),
            stars=tuple((module, file.path, file.reads) for file in files for module in sorted(file.starred)),
            owners=owners,
            own_batchnorm=frozenset(file.path for file in files if "own_batchnorm" in file.flags),
            meta=frozenset((file.path, scope) for file in files for scope in file.meta),
            batchnorm=batchnorm | importing([file for file in files if "own_batchnorm" in file.flags], files, names),
            sources={file.path: file.source for file in files if file.source},
            optimizers=Optimizers.build(files, programs),
            kept=Kept.build(files, chosen, programs),
            entered=Entered(
                ValueFacts(),
                {(file.path, scope): steps for file in files for scope, steps in file.steps.of.items()},
                functions_by_name((file.path, file.functions) for file in files),
                called_values(told),
                programs,
            ),
            takes={(file.path, name): given for file in files for name, given in file.functions.items()},
            words=Words.build(((file.module, file.words) for file in files if file.words), programs),
        )

    @cached_property
    def views(self) -> dict[frozenset[str], Project]:
        """What :func:`~fsdp_rules.project.seen.seen_from` has worked out, by the files that are left out."""
        return {}

    @property
    def is_left_alone(self) -> bool:
        """Whether every FSDP1 model of the project has its FSDP2 twin, so that nothing is to be rewritten."""
        return "gated" in self.flags and "fsdp1" not in self.flags

    @property
    def has_both(self) -> bool:
        """Whether code of the tree chooses between a wrap of FSDP1 and FSDP2's."""
        return "gated" in self.tree_flags or bool(self.twins.lines)

    def may_trap(self, traps: bool) -> bool:
        """Whether what FSDP1 left behind, in code or checkpoints, is to be told of; ``traps``: without FSDP1, too."""
        # A checkpoint goes from one program to another.
        return "fsdp1" in self.tree_flags or (traps and "fsdp2" in self.tree_flags)

    def aliases(self, path: str) -> dict[str, str]:
        """What each imported name of the file at ``path`` stands for."""
        return self.names.names.get(module_name(path), {})

    def resolve(self, dotted: str) -> str:
        """``dotted`` with re-exports of this project followed to where they come from."""
        return self.names.resolve(dotted)

    def home(self, dotted: str) -> tuple[str, str] | None:
        """The file that defines ``dotted``, and its name there; None where several may."""
        module, _, name = self.resolve(dotted).rpartition(".")
        modules = self.names.modules.get(module, ())
        paths = [path for path in self.sources if modules and module_name(path) == modules[0]]
        return (paths[0], name) if len(modules) == 1 and paths else None

    def may_be_on_meta(self, path: str, scope: str) -> bool:
        """Whether the model that ``scope`` wraps comes from a function in which the meta device is named."""
        return not (self.meta | self.values.meta).isdisjoint(self.values.through.get((path, scope), ()))

    def named(self, path: str, scope: str, text: str) -> Fact:
        """What the dotted name ``text`` in ``scope`` (a qualified function name) may be, at any of its places."""
        return self.values.named.get(path, {}).get((scope, text), NOTHING)

    def with_values(self, values: ValueFacts) -> Project:
        """The same with what expressions may be."""
        raised = frozenset({"bounded"} if values.is_bounded else ())
        # A wrap under a name that only the values of the tree say to be FSDP1's class.
        raised |= {"fsdp1"} if values.wraps and "gated" not in self.flags else frozenset()
        return replace(
            self,
            values=values,
            entered=replace(self.entered, facts=values),
            flags=self.flags | raised,
            tree_flags=self.tree_flags | raised,
        )

    @cached_property
    def wraps(self) -> frozenset[tuple[str, int]]:
        """The files and lines that wrap models which are not kept."""
        return frozenset((place[0], place[1]) for place in self.values.wraps if place[0] not in self.apart)

    def touches(self, path: str) -> bool:
        """Whether something in the file at ``path`` may be a wrapped model, or something of one."""
        return path in self.values.touched

    @cached_property
    def gives_names(self) -> bool:
        """Whether a file has a name of its own for FSDP1's class, under which another may wrap a model."""
        return any(canonical(full) == FSDP for names in self.names.names.values() for full in names.values())

    def may_hold(self, attribute: str) -> bool:
        """Whether some object may have a wrapped model as its ``attribute``."""
        return not self.values.attributes.get(attribute, frozenset()) <= self.apart

    def may_return_wrapped(self, path: str, name: str) -> bool:
        """Whether ``name``, called in the file at ``path``, may return a wrapped model."""
        found = self.values.returning.get(name, ())
        return any(self.owners.programs.may_share(path, one) for one in found)

    @cached_property
    def _imported_by_name(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = defaultdict(list)
        for entry in self.imported:
            if not entry.startswith("torch."):
                found[entry.rpartition(".")[2]].append(entry)
        return found

    def imports_from(self, path: str, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether some file of the project imports ``name`` from the file at ``path``.

        A star import does where its file reads the name or passes it on.
        """
        module = module_name(path)
        tail = module.rpartition(".")[2]
        entries = self._imported_by_name.get(name, ())
        if any(entry == f"{module}.{name}" or entry.endswith(f"{tail}.{name}") for entry in entries):
            return True
        return any(
            name in reads or (importer not in seen and self.imports_from(importer, name, seen | {path}))
            for starred, importer, reads in self.stars
            if starred.endswith(tail) and not starred.startswith("torch.")
        )
