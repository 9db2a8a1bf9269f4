"""The facts of all expressions that may be a sharded model, or something of one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from dataclasses import replace

from fsdp_rules.fsdp1.names import FSDP, canonical
from fsdp_rules.fsdp1.private_names import private_names
from fsdp_rules.ir.operations import At, Body
from fsdp_rules.project.flow import Certainty
from fsdp_rules.project.programs import Programs
from fsdp_rules.project.value_facts import NOTHING, Built, Fact, NameSource, Position, Trait, ValueFacts
from fsdp_rules.values.abstract import Kind, Obj
from fsdp_rules.values.alike_reads import alike_reads
from fsdp_rules.values.alternatives import held_by_place
from fsdp_rules.values.bare_modules import bare_modules
from fsdp_rules.values.before_wraps import before_wraps
from fsdp_rules.values.built_before import built_before
from fsdp_rules.values.called_functions import OWN, called, mixed
from fsdp_rules.values.callees import Callees
from fsdp_rules.values.changed_parts import changed_parts, kept_parts, own_reads
from fsdp_rules.values.chosen_parts import chosen_parts
from fsdp_rules.values.class_values import only_called
from fsdp_rules.values.closures import without_closure
from fsdp_rules.values.counted_states import counted_states
from fsdp_rules.values.derivations import Derivations
from fsdp_rules.values.doubled_modules import doubled_modules
from fsdp_rules.values.early_parameters import early_parameters
from fsdp_rules.values.end_modules import end_modules
from fsdp_rules.values.excluded import Excluded
from fsdp_rules.values.gathering import gathering, only_gathered
from fsdp_rules.values.given_names import MemberNames
from fsdp_rules.values.gives import Gives
from fsdp_rules.values.interpreted import interpreted
from fsdp_rules.values.interpreter import Interpreter
from fsdp_rules.values.meta_calls import meta_calls
from fsdp_rules.values.no_modules import is_no_module
from fsdp_rules.values.parameter_writers import writing_calls
from fsdp_rules.values.positions import dotted_at, position_of, text_at
from fsdp_rules.values.rank_seeds import rank_seeded
from fsdp_rules.values.rank_values import rank_cells, rank_values
from fsdp_rules.values.reached import FIELDS, reached, touched
from fsdp_rules.values.setters import family
from fsdp_rules.values.sharded_optimizers import sharded_optimizers
from fsdp_rules.values.state_setters import state_setters
from fsdp_rules.values.sum_order import sharing_inputs
from fsdp_rules.values.thawed import thawed
from fsdp_rules.values.ungraphed import lingering, ungraphed
from fsdp_rules.values.unit_methods import unit_methods
from fsdp_rules.values.unstepped_states import filled_states, unscheduled_loads, unstepped_states
from fsdp_rules.values.unsynced_gradients import unsynced_gradients
from fsdp_rules.values.whole_models import whole_models
from fsdp_rules.values.wrapped_modules import WrappedModules, inside_of, returning

#: The fields of facts of the containers that give some.
_SEVERAL = {Kind.MODEL: "models", Kind.PARAMETER: "parameters", Kind.GRADIENT: "gradients"}
_MODULES = frozenset({Kind.MODEL, Kind.PART, Kind.OPEN})
#: Those of objects that say nothing of a model.
_BESIDE = {Kind.OPTIMIZER: "optimizer", Kind.LOADED: "loaded"}


#: What is known by what an expression may be.
_OF_VALUES: tuple[Trait, ...] = ("excluded", "other", "joined", "own", "plain", "namesake")
_MODELS = frozenset({Kind.MODEL, Kind.PART})


def facts_of(
    sources: Mapping[str, bytes],
    start: Iterable[str],
    alone: Collection[str],
    importing: Callable[[Iterable[str]], Collection[str]] = frozenset,
    kept: Collection[tuple[str, int]] = (),
    programs: Programs | None = None,
    built: frozenset[Built] = frozenset(),
    values: Set[str] = frozenset(),
    why: Derivations | None = None,
) -> ValueFacts:
    """What the expressions of ``sources`` may be.

    ``start`` are the files that are run first, ``alone`` those whose functions are run though nothing calls them.
    ``importing`` gives the files that import some, which are run where something is found: they may call with others.
    ``kept`` the wraps that stay FSDP1's, ``programs`` say which files may run together. ``built`` are the calls that
    give optimizers, ``values`` the names of functions that are called as values. ``why`` gets the reasons of its line.
    """
    machine = interpreted(sources, start, alone, importing, kept, programs, why)
    if machine is None:
        return ValueFacts(is_bounded=True)
    lines = {path: data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n") for path, data in sources.items()}
    known: dict[str, dict[Position, Fact]] = defaultdict(dict)
    if why is not None:
        why.note(machine, lines)
    wrapped = WrappedModules(machine, lambda path, at: bool(dotted_at(at, lines[path])))
    inner = set().union(*wrapped.inner.values())
    exclusions, (before, sooner) = Excluded(machine, sources), before_wraps(machine, values)
    gives, names = Gives(machine), MemberNames(machine)
    alike = machine.attributes.own_like(private_names("attributes"))
    held_at, left_out = held_by_place(machine)
    found_by = _traits(machine, gives) | {"sharded_optimizer": sharded_optimizers(machine, held_at)}
    traits: dict[Trait, dict[str, set[Position]]] = {
        what: {path: {position_of(at, lines[path]) for at in every} for path, every in found.items()}
        for what, found in {**found_by, "early": sooner, **_of_ranks(machine, lines)}.items()
    }
    excluded, others, joined, own, plain, namesakes = (traits.setdefault(what, defaultdict(set)) for what in _OF_VALUES)
    by_name: dict[str, dict[Position, tuple[NameSource, ...]]] = defaultdict(dict)
    tables: dict[str, dict[Position, tuple[NameSource, ...]]] = defaultdict(dict)
    for path, by_place in held_at.items():
        for at, held in by_place.items():
            if at in before.get(path, ()) or exclusions.all_of(path, at, held):
                excluded[path].add(position_of(at, lines[path]))
                continue
            fact = _fact(held, machine, gives)
            if fact == NOTHING and at in left_out[path]:
                excluded[path].add(position_of(at, lines[path]))
            for given, table in ((names.among(held), by_name), (names.inside(held), tables)):
                if given:
                    calls = (NameSource(where, position_of(one, lines[where]), *how) for where, one, *how in given)
                    table[path][position_of(at, lines[path])] = tuple(calls)
            is_other = [one.kind is Kind.OTHER_WRAPPER for one in held]
            if any(is_other):
                fact = fact._replace(other=Certainty.YES if all(is_other) else Certainty.MAYBE)
            if not wrapped.whole.isdisjoint(held):
                fact = fact._replace(given=Certainty.YES if held <= inner else Certainty.MAYBE)
            if fact != NOTHING:
                known[path][position_of(at, lines[path])] = fact
            if any(one.kind in _MODELS for one in held) and any(
                one.kind is not Kind.OTHER_WRAPPER and is_no_module(one, machine, gives) for one in held
            ):
                joined[path].add(position_of(at, lines[path]))
            families = [family(one) for one in held]
            if held and wrapped.whole.isdisjoint(held) and all(families):
                plain[path].add(position_of(at, lines[path]))
            if held and fact.kept is Certainty.NO and not any(map(alike.isdisjoint, families)):
                namesakes[path].add(position_of(at, lines[path]))
            if held and all(is_no_module(one, machine, gives) for one in held):
                others[path].add(position_of(at, lines[path]))
    outer: dict[str, dict[Position, str]] = defaultdict(dict)
    for path, callees in called(machine).items():
        for at, name in callees.items():
            if name == OWN:
                own[path].add(position_of(at, lines[path]))
            elif name:
                outer[path][position_of(at, lines[path])] = name
    changed = {
        path: {position_of(at, lines[path]): names for at, names in by_place.items()}
        for path, by_place in changed_parts(machine).items()
    }
    built_early = {
        path: {position_of(at, lines[path]): text_at(model, lines[where]) for at, (where, model) in by_place.items()}
        for path, by_place in early_parameters(machine, lambda one: is_no_module(one, machine, gives)).items()
    }
    earlier = {
        path: {position_of(at, lines[path]): found for at, found in by_place.items()}
        for path, by_place in built_before(machine, built, values).items()
    }
    facts = ValueFacts(
        known,
        touched(machine),
        traits,
        outer,
        changed=changed,
        built_early=built_early,
        built_before=earlier,
        reached=reached(machine).union(machine.modules.unparsed, by_name, tables),
        read=_read(machine, gives),
        thawed=thawed(machine),
        named=_named(known, lines, machine, gives),
        attributes=machine.by_name.models(),
        returning=returning(machine),
        through=wrapped.through(),
        makers=wrapped.makers(),
        nested=wrapped.nested(),
        wraps=machine.wraps.texts(),
        over_several_meshes=machine.wraps.over_several_meshes(),
        chosen=chosen_parts(machine),
        sharing=sharing_inputs(machine) if machine.is_complete else frozenset(),
        ungraphed=ungraphed(machine),
        lingering=lingering(machine),
        doubled=doubled_modules(machine),
        meta=meta_calls(machine),
        names=by_name,
        tables=tables,
        is_bounded=machine.is_bounded,
    )
    # The last of all, since it runs more.
    whole = whole_models(machine)
    return replace(facts, whole=whole, apart=end_modules(machine, whole))


def _traits(machine: Interpreter, gives: Gives) -> dict[Trait, dict[str, set[At]]]:
    """The places that each way through the tree finds."""
    (read_again, loaded_again), filled = counted_states(machine), filled_states(machine)
    (alike, counted), (bare, members) = alike_reads(machine), bare_modules(machine)
    runs_modules, enters_modules = unit_methods(machine, lambda one: is_no_module(one, machine, gives))
    return {
        "kept_part": kept_parts(machine),
        "alike": alike,
        "counted": counted,
        "bare": bare,
        "member": members,
        "writes": writing_calls(machine),
        "gathers": gathering(machine),
        "gathered": only_gathered(machine),
        "only_called": only_called(machine),
        "runs_modules": runs_modules,
        "enters_modules": enters_modules,
        "read_again": read_again,
        "loaded_again": loaded_again,
        "unstepped": unstepped_states(machine),
        "filled": filled[True],
        "perhaps_filled": filled[False],
        "unscheduled": unscheduled_loads(machine),
        "unsynced": unsynced_gradients(machine),
        "closureless": without_closure(machine),
        "sets_state_type": state_setters(machine, lambda one: _is_kept(one, machine, gives)),
        "mixed": mixed(machine, lambda one: is_no_module(one, machine, gives)),
        "unseen": Callees(machine).unknown(),
    }


def _of_ranks(machine: Interpreter, lines: Mapping[str, list[bytes]]) -> dict[Trait, dict[str, set[At]]]:
    cells = rank_cells(machine, lines)
    seeded, built = rank_seeded(machine, cells)
    return {"ranked": rank_values(machine, cells), "rank_seeded": seeded, "rank_built": built}


def _read(machine: Interpreter, gives: Gives) -> dict[str, frozenset[str]]:
    """The attributes of their own that the classes of each file read which may be those of modules."""
    found: dict[str, set[str]] = defaultdict(set)
    for frame in machine.frames:
        owner = frame.owner if frame.body.kind == "class" else None
        if owner is None or not owner.data.bases:
            continue
        if not is_no_module(machine.attributes.any_of(owner.data), machine, gives):
            found[frame.body.path].update(own_reads(frame.body))
    return {path: frozenset(names) for path, names in found.items()}


def _fact(every: Collection[Obj], machine: Interpreter, gives: Gives) -> Fact:
    fields = {**FIELDS, **_BESIDE}
    found = {name: Certainty.MAYBE for kind, name in fields.items() if any(one.kind is kind for one in every)}
    if any(_is_kept(one, machine, gives) for one in every):
        found["kept"] = Certainty.MAYBE
    for kind, name in _SEVERAL.items():
        if any(one.kind is Kind.CONTAINER and gives.some(frozenset({kind}), one) for one in every):
            found[name] = Certainty.MAYBE
    if len(found) == 1 and machine.is_complete and _are_one(every, machine):
        found = dict.fromkeys(found, Certainty.YES)
    if not found:
        return NOTHING
    wraps = ({one.since for one in every if one.kind is kind and one.since} for kind in (Kind.MODEL, Kind.PART))
    return Fact(**found, origins=tuple(sorted(next(filter(None, wraps), ()))))


def _named(
    known: Mapping[str, Mapping[Position, Fact]],
    lines: Mapping[str, list[bytes]],
    machine: Interpreter,
    gives: Gives,
) -> dict[str, dict[tuple[str, str], Fact]]:
    """What each dotted name in each function may be, by files; a parameter is there where it is not read, too."""
    found: dict[str, dict[tuple[str, str], Fact]] = defaultdict(dict)
    seen: set[Body] = set()
    for frame in machine.frames:
        path, body, each = frame.body.path, frame.body, list[tuple[str, Fact]]()
        for value, name in enumerate(body.parameters):
            each.append((name, _fact(machine.store.of(frame.base + value), machine, gives)))
        for at in {at for at, _ in body.uses} if body not in seen else ():
            if (fact := known.get(path, {}).get(position_of(at, lines[path]))) is not None:
                each.append((dotted_at(at, lines[path]), fact))
        seen.add(body)
        for text, fact in each:
            if text and fact != NOTHING:
                own = found[path]
                own[frame.scope, text] = fact.or_else(own.get((frame.scope, text), NOTHING))
    return found


def _is_kept(one: Obj, machine: Interpreter, gives: Gives) -> bool:
    return one.is_kept or one in gives.kept or _extends_fsdp1(one, machine)


def _extends_fsdp1(one: Obj, machine: Interpreter) -> bool:
    """Whether ``one`` is an object of a subclass of FSDP1's class."""
    bases = (base for each in family(one) for base in each.bases)
    outer = (each for base in bases for each in machine.store.of(base) if each.kind is Kind.EXTERN)
    return any(canonical(each.data) == FSDP for each in outer)


def _are_one(every: Collection[Obj], machine: Interpreter) -> bool:
    """Whether all are of one kind: models, beside which a run that wraps none may have what is inside of one."""
    kinds = {one.kind for one in every}
    if Kind.MODEL not in kinds:
        return len(kinds) == 1
    inner = inside_of((one for one in every if one.kind is Kind.MODEL), machine)
    return all(one.kind in (Kind.MODEL, Kind.OTHER_WRAPPER) or one in inner for one in every)
