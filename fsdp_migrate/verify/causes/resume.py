"""Causes in what a run that resumes was given: by its load, or by what was saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fsdp_migrate.verify.causes.cause import Cause, name_of
from fsdp_migrate.verify.causes.optimizer import twin
from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Difference, Question
from fsdp_migrate.verify.compare.gap import state_gap
from fsdp_migrate.verify.recording.recording import Recording, Step

_GIVEN = (Question.INITIAL_WEIGHTS, Question.INITIAL_STATE)


class StateOfSomeRanks(Cause):
    """Only some ranks have an optimizer state after the load."""

    name, rule = "state-of-some-ranks", "FSDP305"
    cure = "Load it on every rank, or with broadcast_from_rank0=True."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        empty = _start(comparison.after, first).empty
        if first.question is not Question.INITIAL_STATE or not empty or _start(comparison.before, first).empty:
            return None
        ranks = ", ".join(map(str, empty))
        return f"rank{'s' * (len(empty) > 1)} {ranks} have no optimizer state after the load, but other ranks do"


class NotResumed(Cause):
    """No parameter has a state after the load."""

    name, rule = "not-resumed", "FSDP313"
    cure = "Fill the template with get_optimizer_state_dict before dcp.load, and check what was loaded."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        before, after = _start(comparison.before, first).state, _start(comparison.after, first).state
        if first.question not in _GIVEN or not before or after:
            return None
        return (
            f"the optimizer continues with states of {len(before)} parameters before, and with none after: it was "
            "loaded from an empty template"
        )


class OneTensor(Cause):
    """Several states of a parameter are one tensor after the load."""

    name, rule = "one-tensor", "FSDP407"
    cure = "Save it again with offload_to_cpu=False, or copy each state when it is loaded."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        start, known = _start(comparison.after, first), _start(comparison.before, first)
        within = start.within - known.within
        if first.question is Question.INITIAL_STATE and first.what and not within:
            # A load that copies each state gives each of them what the file has for all.
            other = twin(start.state.get(comparison.pairs.keys.get(first.name, first.name), {}), first.what)
            if other is None or twin(known.state.get(first.name, {}), first.what) is not None:
                return None
            return (
                f"{first.what} of {name_of(comparison, first.name)} has the values of {other} after the load: the file "
                "has one tensor for both, as FSDP1 saves them on the CPU"
            )
        if first.question not in (Question.INITIAL_STATE, Question.STATE) or first.what not in within:
            return None
        return f"{' and '.join(sorted(within))} of {name_of(comparison, first.name)} are one tensor after the load"


class SharedCounter(Cause):
    """Several parameters have one tensor as a state, which each of them changes."""

    name, rule = "shared-counter", "FSDP408"
    cure = "Copy each parameter's states after the load, as rewrite does."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        between = _start(comparison.after, first).between - _start(comparison.before, first).between
        if first.question not in (Question.STATE, Question.WEIGHTS) or not between:
            return None
        if first.question is Question.STATE and first.what not in between:
            return None
        shared = " and ".join(sorted(between))
        return f"{shared} is one tensor for several parameters after the load: each changes it for all"


class OtherOrder(Cause):
    """The states are those of other parameters."""

    name, rule = "other-order", "FSDP403"
    cure = (
        "Load states by name (set_optimizer_state_dict), or build the groups in the same order as the run that saved."
    )

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.INITIAL_STATE or not first.what:
            return None
        wanted = _start(comparison.before, first).state
        for name, what, value in _given(comparison, first):
            owner = next((key for key, own in wanted.items() if key != name and _same(own.get(what), value)), None)
            if owner is not None:
                return f"{what} of {name_of(comparison, name)} has the value of {name_of(comparison, owner)}"
        return None


class OfAnotherStep(Cause):
    """What was loaded is what the run that never stopped had at another step."""

    name, rule = "of-another-step", "FSDP309"
    cure = "Copy a state (copy.deepcopy) if a step may run before it is written, and load the newest one."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question not in _GIVEN or not comparison.before.until:
            return None
        found = [each for each in _given(comparison, first) if not _is_number(each[2])]
        steps = (*comparison.before.until, *comparison.before.steps)
        for number, step in enumerate(steps, 1):
            if found and all(_same(_held(step, name, what), value) for name, what, value in found):
                now = len(comparison.before.until)
                return (
                    f"{name_of(comparison, *(name for name, _, _ in found))} belongs to step {number}, not to "
                    f"step {now}"
                )
        return None


class NothingLoaded(Cause):
    """The weights are not those that were saved."""

    name, rule = "nothing-loaded", "FSDP314"
    cure = "Load with strict=True, and compare the keys of the checkpoint with those of the model."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.INITIAL_WEIGHTS or not comparison.before.until:
            return None
        changed = {found.name for found in comparison.tally.of(Question.INITIAL_WEIGHTS)}
        every = _start(comparison.before, first).weights
        if len(changed) < len(every):
            return None
        return f"none of the {len(every)} parameters has its saved values: nothing was loaded"


class DataFromStart(Cause):
    """The data begin again where the run that saved had begun."""

    name = "data-from-start"
    cure = "Save and load the position of the data (sampler, dataset, worker seeds)."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.DATA or not comparison.before.until or not comparison.after.steps:
            return None
        start, now = comparison.before.until[0], comparison.after.steps[0]
        same = [
            one.inputs and one.inputs[0].tensors == two.inputs[0].tensors
            for one, two in zip(start.ranks, now.ranks, strict=False)
            if two.inputs
        ]
        return "the run that resumes starts again with the first batch" if same and all(same) else None


class OtherRandomNumbers(Cause):
    """The generators are elsewhere, and what comes from them differs."""

    name = "other-random-numbers"
    cure = "Save torch.get_rng_state() (and torch.cuda.get_rng_state()) of each rank, and set it after the load."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        random = (Question.DATA, Question.FORWARD, Question.LOSS, Question.LOCAL_GRADIENTS)
        if first.question not in random or not comparison.before.until or first.rank is None:
            return None
        before, after = (
            side.steps[first.event].ranks[first.rank].random for side in (comparison.before, comparison.after)
        )
        return (
            "the random generators have a different state: it was not loaded"
            if before and after and before != after
            else None
        )


class InitialRate(Cause):
    """A schedule is computed from another rate than before."""

    name = "initial-lr"
    cure = "Build the scheduler before the optimizer's state is loaded, and load the state of both."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.SETTINGS or first.what != "initial_lr" or not comparison.before.until:
            return None
        name = name_of(comparison, first.name)
        return f"initial_lr of {name} is {first.before} before and {first.after} after: the schedule starts from it"


class LostSchedule(Cause):
    """A rate that changes from step to step does not continue."""

    name = "lost-schedule"
    cure = "Save scheduler.state_dict(), and load it after the optimizer's state."

    def message(self, comparison: Comparison, first: Difference) -> str | None:
        if first.question is not Question.SETTINGS or not comparison.before.until:
            return None
        steps = (*comparison.before.until, *comparison.before.steps)
        planned = [_of_group(comparison.before, step, first.name, first.what) for step in steps]
        if len({repr(value) for value in planned}) == 1:
            return None
        return (
            f"{first.what} of {name_of(comparison, first.name)} is {first.before} before and {first.after} after: "
            "the schedule does not continue"
        )


#: In the order in which they are asked.
RESUMING: tuple[Cause, ...] = (
    DataFromStart(),
    OtherRandomNumbers(),
    StateOfSomeRanks(),
    OneTensor(),
    SharedCounter(),
    OfAnotherStep(),
    OtherOrder(),
    NothingLoaded(),
    InitialRate(),
    LostSchedule(),
)


def _start(recording: Recording, first: Difference) -> Any:
    return recording.optimizers[min(first.optimizer, len(recording.optimizers) - 1)]


def _given(comparison: Comparison, first: Difference) -> Iterator[tuple[str, str, object]]:
    """What differs of what the run after was given: parameter, state or "" for the weight, and what it has."""
    start = _start(comparison.after, first)
    for found in comparison.tally.of(first.question):
        other = comparison.pairs.keys.get(found.name, found.name)
        held = start.weights if first.question is Question.INITIAL_WEIGHTS else start.state.get(other, {})
        key = other if first.question is Question.INITIAL_WEIGHTS else found.what
        if key in held:
            yield found.name, "" if first.question is Question.INITIAL_WEIGHTS else found.what, held[key]


def _held(step: Step, name: str, what: str) -> object:
    states: Mapping[str, Any] = step.state.get(name, {}) if what else step.weights
    return states.get(what or name)


def _same(one: object, two: object) -> bool:
    return one is not None and two is not None and not _is_number(two) and state_gap(one, two) is None


def _is_number(value: object) -> bool:
    """Whether it is a count or the like, which is the same for many parameters, or zeros."""
    if not isinstance(value, tuple):
        return True
    return all(copy is None or copy.numel == 1 or copy.is_zero for copy in value)


def _of_group(recording: Recording, step: Step, name: str, what: str) -> object:
    groups: Sequence[Sequence[str]] = recording.optimizers[step.optimizer].groups
    return next((own.get(what) for names, own in zip(groups, step.settings, strict=False) if name in names), None)
