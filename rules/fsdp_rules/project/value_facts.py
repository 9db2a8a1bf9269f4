"""What the expressions of a tree may be, by their places: the part of the values that rules ask for."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from fsdp_rules.project.endings import Ending
from fsdp_rules.project.flow import Certainty

#: Lines from 1 and columns from 0, of the first character and behind the last.
Position = tuple[int, int, int, int]
#: A file and a line where something is wrapped, alone or with a number for one of the frames that run it and a column.
Place = tuple[str, int] | tuple[str, int, int, int]
#: A function: the path of its file and its qualified name.
Function = tuple[str, str]


class Ends(NamedTuple):
    """Attributes of a model that its forward runs before all modules of the tree's own, and those after the last.

    ``left``: the model may have other parameters, outside of these and of its own modules.
    """

    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    left: bool = False


#: What a gathered parameter and its shard answer alike, as FSDP2's are DTensors, which have the whole shape.
ALIKE = frozenset(
    {
        *("device", "dim", "dtype", "element_size", "is_cpu", "is_cuda", "is_floating_point", "is_leaf", "itemsize"),
        *("nelement", "ndim", "numel", "requires_grad", "shape", "size"),
    }
)
#: What is known of an expression by its place.
Trait = Literal[
    "other",  # Nothing but objects that are no modules reaches it: optimizers, models in other wrappers, texts.
    "excluded",  # A sharded model reaches it in no run, by the settings that are tested around it, or not yet.
    "plain",  # It is an object of a class of the tree, and no wrap is given it or what it is in.
    "namesake",  # It is no wrapper of FSDP1, but its class has an attribute that is called like a private one of these.
    "early",  # It is in a method that also runs before its model is wrapped, by the ``__init__`` that calls both.
    "joined",  # It is a model, and in other runs an object that surely is no module.
    "alike",  # It gives a model's parameters, of which only what is the same of gathered and sharded ones is read.
    "counted",  # It says how many parameters a model has.
    "bare",  # It is a module of a model, surely none of FSDP1's wrappers, and perhaps what one of these holds.
    "member",  # It runs over all modules of a model, of which FSDP1's wrappers and what these hold are two.
    "own",  # It is called, and surely a function of the tree.
    "unseen",  # It is called with a sharded model, and a function that nothing of the tree names.
    "mixed",  # It is called, and a method of models, and in other runs of an optimizer or an own object.
    "kept_part",  # It is put into a model, and a part of it already, by itself or in a wrapper.
    "gathers",  # A ``with`` enters it, and it calls a function of the tree that gathers full parameters in it.
    "gathered",  # It is a function of the tree, and only runs while full parameters are gathered.
    "only_called",  # It is FSDP1's class, and the tree only calls it where it has handed it on.
    "runs_modules",  # It is called from outside of a model of the tree, and a method that runs modules in that.
    "enters_modules",  # So, and the method runs another method of a module in the model than its call.
    "writes",  # It is called, and leads to a change in place of a model's parameters by a function of the tree.
    "unstepped",  # It is called to take the state of an optimizer that may have made no step.
    "filled",  # It is called to load a checkpoint into the state of an optimizer that has made no step.
    "perhaps_filled",  # It is called to load a checkpoint into that of an optimizer of which one may have made none.
    "unscheduled",  # It is called to read the state of an optimizer whose scheduler is built later.
    "read_again",  # It is called to load an optimizer's state that may be loaded or saved again after more steps.
    "loaded_again",  # It is called to take an optimizer's state that is loaded in the same run, out of memory.
    "sharded_optimizer",  # It may be an optimizer that holds parameters of a sharded model.
    "unsynced",  # It is a gradient, or called to read one, after a backward that has reduced nothing.
    "closureless",  # It may be an optimizer of the tree whose step takes no closure.
    "ranked",  # It may be formed of the number of a process, or read from a path that is.
    "rank_seeded",  # It wraps a model after a seed that is formed of such a number, and nothing makes the ranks equal.
    "rank_built",  # So, and a class of the tree makes what it wraps.
    "sets_state_type",  # It is a call of a function of the tree, and leads to one that sets the type of states.
]


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


class Built(NamedTuple):
    """A call that gives an optimizer: its file, and where it ends, as :mod:`ast` counts."""

    path: str
    line: int
    column: int


class NameSource(NamedTuple):
    """A call as ``model.named_parameters()``, and whether it is one of a model that is wrapped, or of a part of one.

    ``is_gathered``: it always finds full parameters. ``is_compared``: what has the name compares with it what is looked
    up there, as a dictionary does with its keys.
    """

    path: str
    position: Position
    is_sharded: bool
    is_gathered: bool
    is_compared: bool


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
    which FSDP1's class, models that stay in it, models in another wrapper or names of parameters come. ``traits`` are
    the positions of each.
    ``named`` is what the dotted names in each function may be. ``attributes`` are those as which some object has a
    model, ``returning`` the last names of functions that return one, with their files. ``through`` are the functions
    that the models of each function that wraps come through, ``makers`` the files of those that return them and of
    their classes. ``nested`` are the wraps, by file and line, that are given several modules, or ones that no code
    gives.
    ``called`` are the functions of torch that calls run, by the positions of what is called. ``ends`` are the parts
    that the classes of all files may end with, by last names, where some rule may ask for them. ``changed`` are the
    classes and their bases, by last names, of the parts of models that get an attribute, by the positions of what gives
    such a part. ``read`` are the attributes of their own that the classes of each file read which may be those of
    modules. ``thawed`` are the wraps, by file and line, whose parameters may get gradients again after they were
    frozen; None where it may be any. ``wraps`` are the texts of what each argument may be where a model is wrapped:
    those of constants, FSDP1's names, :data:`NONE` where it is not given, and :data:`UNKNOWN`; fields of its objects
    behind a dot. ``over_several_meshes`` are the frames of places, with their files, in which the parts of one model
    may be sharded over different ranks.
    ``sharing`` are the wraps, by file and line, of models in which a unit reads an input more than once that something
    else reads after it, or runs again before a backward and reads a weight more than once. ``whole`` are those of
    models of which each forward uses all parameters, ``apart`` what of such models can be units beside their blocks,
    ``chosen`` the attributes of which a forward runs entries
    that the run chooses. ``ungraphed`` are those of models that run without a graph each time, ``lingering`` those of
    models that do so beside others, ``doubled`` those of models that may have one module under several names. ``meta``
    are the functions that may give a call the meta device.
    ``built_early`` are the positions of calls that build optimizers, each with the text of a module which is
    wrapped later.
    ``built_before`` are the optimizers that may be built before each call that wraps.
    ``names`` are the calls of which each expression may be a name that they give, and ``tables`` those of which it may
    have such names, as elements or as keys. ``is_bounded``: the tree is so large that some of it was left out.
    """

    known: Mapping[str, Mapping[Position, Fact]] = field(default_factory=dict)
    touched: frozenset[str] = frozenset()
    traits: Mapping[Trait, Mapping[str, Set[Position]]] = field(default_factory=dict)
    called: Mapping[str, Mapping[Position, str]] = field(default_factory=dict)
    ends: Mapping[str, tuple[tuple[Ending, ...], ...]] = field(default_factory=dict)
    changed: Mapping[str, Mapping[Position, Set[str]]] = field(default_factory=dict)
    read: Mapping[str, frozenset[str]] = field(default_factory=dict)
    thawed: Set[tuple[str, int] | None] = frozenset({None})
    reached: frozenset[str] = frozenset()
    meta: Set[Function] = frozenset()
    built_early: Mapping[str, Mapping[Position, str]] = field(default_factory=dict)
    built_before: Mapping[str, Mapping[Position, frozenset[Built]]] = field(default_factory=dict)
    named: Mapping[str, Mapping[tuple[str, str], Fact]] = field(default_factory=dict)
    attributes: Mapping[str, frozenset[str]] = field(default_factory=dict)
    returning: Mapping[str, frozenset[str]] = field(default_factory=dict)
    through: Mapping[Function, frozenset[Function]] = field(default_factory=dict)
    makers: Mapping[Function, frozenset[str]] = field(default_factory=dict)
    nested: Set[tuple[str, int]] = frozenset()
    wraps: Mapping[Place, Mapping[str, frozenset[str]]] = field(default_factory=dict)
    over_several_meshes: frozenset[tuple[str, int]] = frozenset()
    sharing: Set[tuple[str, int]] = frozenset()
    whole: Set[tuple[str, int]] = frozenset()
    apart: Mapping[tuple[str, int], Ends] = field(default_factory=dict)
    chosen: Mapping[tuple[str, int], tuple[str, ...]] = field(default_factory=dict)
    ungraphed: Set[Place] = frozenset()
    lingering: Set[Place] = frozenset()
    doubled: Set[Place] = frozenset()
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
