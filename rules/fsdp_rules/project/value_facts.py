"""What the expressions of a tree may be, by their places: the part of the values that rules ask for."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from fsdp_rules.project.endings import Ending
from fsdp_rules.project.flow import Certainty

#: Lines from 1 and columns from 0, of the first character and behind the last.
Position = tuple[int, int, int, int]
#: A file and a line where something is wrapped, alone or with a number for one of the frames that run it and a column.
Place = tuple[str, int] | tuple[str, int, int, int]
#: A function: the path of its file and its qualified name.
Function = tuple[str, str]


class Fact(NamedTuple):
    """How sure it is that an expression is each kind of value."""

    model: Certainty = Certainty.NO
    #: A container that has one.
    models: Certainty = Certainty.NO
    part: Certainty = Certainty.NO
    parameter: Certainty = Certainty.NO
    parameters: Certainty = Certainty.NO
    gradient: Certainty = Certainty.NO
    gradients: Certainty = Certainty.NO
    #: A tensor that is computed of gradients.
    number: Certainty = Certainty.NO
    optimizer: Certainty = Certainty.NO
    #: A model whose wrap stays FSDP1's.
    kept: Certainty = Certainty.NO
    #: A model in another wrapper, as DistributedDataParallel.
    other: Certainty = Certainty.NO
    #: What some wrap is given, and what has that in it, before it is wrapped; surely where it is that module itself.
    given: Certainty = Certainty.NO
    #: What ``torch.load`` gives, or an entry of it.
    loaded: Certainty = Certainty.NO
    #: Where the model, or that of the part, is wrapped.
    origins: tuple[Place, ...] = ()

    def or_else(self, other: Fact) -> Fact:
        """What either is."""
        sure = {name: max(getattr(self, name), getattr(other, name)) for name in self._fields if name != "origins"}
        return Fact(**sure, origins=self.origins or other.origins)


class NameSource(NamedTuple):
    """A call as ``model.named_parameters()``, and whether it is one of a model that is wrapped, or of a part of one.

    ``is_gathered``: it always finds full parameters.
    """

    path: str
    position: Position
    is_sharded: bool
    is_gathered: bool


NOTHING = Fact()
#: Texts of an argument that is not given, or None, and of one that only the running program knows.
NONE, UNKNOWN = "None", "?"
#: That of a process group of some of the ranks.
SUBGROUP = "subgroup"
#: Stands for what a call gets by ``**``: NONE where that adds to its arguments only what these say.
SPREAD = "**"


@dataclass(frozen=True)
class ValueFacts:
    """The facts of each file, by the positions of its expressions.

    ``touched`` are the files in which something may be a model, or something of one, ``reached`` these and those to
    which FSDP1's class, models that stay in it or models in another wrapper come. ``others`` are the positions that
    nothing but objects that are no modules reach: optimizers, models in other wrappers, texts, configurations.
    ``named`` is what the dotted names in each function may be. ``attributes`` are those as which some object has a
    model, ``returning`` the last names of functions that return one, maybe as an attribute of an object, with their
    files. ``through`` are the functions that the models of each function that wraps come through, ``makers`` the
    files of those that return them and of their classes. ``nested`` are the wraps, by file and line, that are given
    several modules, or ones that no code gives.
    ``excluded`` are the positions that a sharded model reaches in no run, by the settings that are tested around them.
    ``called`` are the functions of torch that calls run, by the positions of what is called, ``own`` the positions of
    what is surely a function of the tree there. ``ends`` are the parts that the classes of all files may end with, by
    last names, where some rule may ask for them. ``changed`` are the classes and their bases, by last names, of the
    parts of models that get an attribute, by the positions of what gives such a part; ``kept`` the positions of what is
    put into a model and is a part of it already. ``read`` are the attributes of their own that the classes of each file
    read which may be those of modules. ``writing`` are the positions of what is called that leads to a change in place
    of a model's parameters by a function of the tree. ``thawed`` are the wraps, by file and line, whose parameters may
    get gradients again after they were frozen; None where it may be any. ``gathering`` are the positions of what
    ``with`` statements enter that gathers full parameters in a function of the tree. ``entering`` are those of methods
    of models that are called from outside of them and run modules in them, ``counted`` those of loads of an optimizer's
    state that was taken in the same run and may be read again after more steps, ``unseen`` those of what is called with
    a model though nothing says what it is. ``wraps`` are the texts of what
    each argument may be where a model is wrapped: those of constants, FSDP1's names, :data:`NONE`
    where it is not given, and :data:`UNKNOWN`; fields of its objects behind a dot.
    ``sharing`` are the wraps, by file and line, of models in which a unit reads an input more than once that something
    else reads after it, or runs again before a backward and reads a weight more than once. ``whole`` are those of
    models of which each forward uses all parameters, ``chosen`` the attributes of which a forward runs entries
    that the run chooses, ``ungraphed`` those of models that run without a graph each time.
    ``built_early`` are the positions of calls that build optimizers, each with the text of a module which is
    wrapped later.
    ``names`` are the calls of which each expression may be a name that they give, and ``tables`` those of which it may
    have such names, as elements or as keys.
    ``unstepped`` are the positions of what takes an optimizer's state before the first step, ``closureless`` those of
    optimizers whose step takes no closure, ``mixed`` those of methods that are called of models and of other objects,
    ``setting`` those of calls that lead to a setting of the type of states in a function of the tree,
    ``joined`` those of what is a model, and in other runs an object that surely is no module.
    ``is_bounded``: the tree is so large that some of it was left out.
    """

    known: Mapping[str, Mapping[Position, Fact]] = field(default_factory=dict)
    touched: frozenset[str] = frozenset()
    others: Mapping[str, Set[Position]] = field(default_factory=dict)
    called: Mapping[str, Mapping[Position, str]] = field(default_factory=dict)
    excluded: Mapping[str, Set[Position]] = field(default_factory=dict)
    own: Mapping[str, Set[Position]] = field(default_factory=dict)
    ends: Mapping[str, tuple[tuple[Ending, ...], ...]] = field(default_factory=dict)
    changed: Mapping[str, Mapping[Position, Set[str]]] = field(default_factory=dict)
    kept: Mapping[str, Set[Position]] = field(default_factory=dict)
    read: Mapping[str, frozenset[str]] = field(default_factory=dict)
    writing: Mapping[str, Set[Position]] = field(default_factory=dict)
    gathering: Mapping[str, Set[Position]] = field(default_factory=dict)
    entering: Mapping[str, Set[Position]] = field(default_factory=dict)
    counted: Mapping[str, Set[Position]] = field(default_factory=dict)
    unstepped: Mapping[str, Set[Position]] = field(default_factory=dict)
    closureless: Mapping[str, Set[Position]] = field(default_factory=dict)
    mixed: Mapping[str, Set[Position]] = field(default_factory=dict)
    joined: Mapping[str, Set[Position]] = field(default_factory=dict)
    setting: Mapping[str, Set[Position]] = field(default_factory=dict)
    thawed: Set[tuple[str, int] | None] = frozenset({None})
    reached: frozenset[str] = frozenset()
    unseen: Mapping[str, Set[Position]] = field(default_factory=dict)
    built_early: Mapping[str, Mapping[Position, str]] = field(default_factory=dict)
    named: Mapping[str, Mapping[tuple[str, str], Fact]] = field(default_factory=dict)
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    returning: Mapping[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    through: Mapping[Function, frozenset[Function]] = field(default_factory=dict)
    makers: Mapping[Function, frozenset[str]] = field(default_factory=dict)
    nested: Set[tuple[str, int]] = frozenset()
    wraps: Mapping[Place, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    sharing: Set[tuple[str, int]] = frozenset()
    whole: Set[tuple[str, int]] = frozenset()
    chosen: Mapping[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    ungraphed: Set[Place] = frozenset()
    names: Mapping[str, Mapping[Position, tuple[NameSource, ...]]] = field(default_factory=dict)
    tables: Mapping[str, Mapping[Position, tuple[NameSource, ...]]] = field(default_factory=dict)
    is_bounded: bool = False

    @cached_property
    def has_subgroup(self) -> bool:
        """Whether a wrap may be given a process group of some of the ranks."""
        return any(SUBGROUP in given.get("process_group", ()) for given in self.wraps.values())

    @cached_property
    def giving(self) -> frozenset[str]:
        """The files that have what some wrap is given."""
        every = self.known.items()
        return frozenset(path for path, facts in every if any(one.given is not Certainty.NO for one in facts.values()))

    def at(self, path: str, position: Position) -> Fact:
        """What the expression at ``position`` may be."""
        return self.known.get(path, {}).get(position, NOTHING)
