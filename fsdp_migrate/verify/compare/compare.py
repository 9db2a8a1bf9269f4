"""Asks all questions of two recordings, in their order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fsdp_migrate.verify.compare.difference import NORM_ROUNDING, Difference, Question, Tally
from fsdp_migrate.verify.compare.gap import Gap, copies_gap, gap, state_gap
from fsdp_migrate.verify.compare.pairs import Pairs, pair
from fsdp_migrate.verify.compare.setup import environment_differences, unit_differences
from fsdp_migrate.verify.recording.recording import Call, Forward, OfRank, Recording, Step
from fsdp_migrate.verify.recording.value import Copies, Value

#: How large a relative difference is none, by question, event and what is compared: see :attr:`Difference.subject`.
Allowance = Callable[[Question, int, str], float]


def nothing_allowed(question: Question, event: int, subject: str) -> float:
    """Bit for bit."""
    return 0.0


_LATER = {Question.INITIAL_WEIGHTS: Question.WEIGHTS, Question.INITIAL_STATE: Question.STATE}


class Comparison:
    """What two runs have in common and what not; ``tally`` is complete after construction."""

    def __init__(self, before: Recording, after: Recording, allowance: Allowance = nothing_allowed) -> None:
        self.before, self.after = before, after
        self.pairs: Pairs = pair(before, after)
        self.tally = Tally()
        self._allowance = allowance
        self._event = -1
        self._begun: set[int] = set()
        self._seen: set[str] = set()
        self._greatest: dict[tuple[Question, str, str], float] = {}
        for difference in (*environment_differences(before, after), *unit_differences(before, after, self.pairs)):
            self.tally.add(difference)
        self._start()
        for self._event, (first, second) in enumerate(zip(before.steps, after.steps, strict=False)):
            self._found(first.optimizer)
            self._step(first, second)

    @property
    def same_world(self) -> bool:
        """Whether each rank of one run has a counterpart in the other."""
        return self.before.world == self.after.world

    def _start(self) -> None:
        for key in (*self.pairs.only_before, *self.pairs.only_after):
            here = key in self.pairs.only_before
            self._missing(Question.INITIAL_WEIGHTS, -1, key, "a parameter" if here else "None", here)
        if self.same_world:
            for rank, (one, two) in enumerate(zip(self.before.first_buffers, self.after.first_buffers, strict=True)):
                self._named(Question.INITIAL_BUFFERS, -1, rank, one, two)

    def _found(self, number: int) -> None:
        """The models that the first step of an optimizer found, some of them made of what others have learnt."""
        if number in self._begun or number >= min(len(self.before.optimizers), len(self.after.optimizers)):
            return
        self._begun.add(number)
        first, second = self.before.optimizers[number], self.after.optimizers[number]
        fresh = {key: copies for key, copies in first.weights.items() if key not in self._seen}
        self._seen |= fresh.keys()
        event, self._event = self._event, self._event or -1
        self._parameters(Question.INITIAL_WEIGHTS, -1, 0, fresh, second.weights)
        self._state(Question.INITIAL_STATE, -1, number, first.state, second.state)
        self._event = event

    def _missing(self, question: Question, step: int, key: str, text: str, here: bool) -> None:
        other = "a parameter" if text == "None" else "None"
        self.tally.add(Difference(question, step, key, text if here else "None", other if here else "a parameter"))

    def _step(self, first: Step, second: Step) -> None:
        step, number = first.step, first.optimizer
        if self.same_world:
            for rank, (one, two) in enumerate(zip(first.ranks, second.ranks, strict=True)):
                self._rank(step, number, rank, one, two)
        self._parameters(
            Question.GRADIENTS, step, number, first.unclipped or first.grads, second.unclipped or second.grads
        )
        clipped = bool(first.unclipped or second.unclipped)
        if clipped:
            self._parameters(Question.CLIPPED_GRADIENTS, step, number, first.grads, second.grads)
        self._settings(step, number, first, second)
        self._state(Question.STATE, step, number, first.state, second.state)
        self._parameters(Question.WEIGHTS, step, number, first.weights, second.weights)

    def _rank(self, step: int, number: int, rank: int, one: OfRank, two: OfRank) -> None:
        def listed(question: Question, a: Sequence[Value | None], b: Sequence[Value | None], name: str = "") -> None:
            if len(a) != len(b):
                self._add(question, step, number, name, None, rank, f"{len(a)} times", f"{len(b)} times")
            for position, (left, right) in enumerate(zip(a, b, strict=False)):
                self._value(question, step, number, name, rank, left, right, f"call {position}")

        listed(Question.DATA, _tensors(one.inputs, True), _tensors(two.inputs, True))
        unseen = [_tensors(side.inputs, False) for side in (one, two)]
        # A forward without gradients (sampling) goes past FSDP1's wrapper in some programs, and FSDP2 has no wrapper.
        if len(unseen[0]) == len(unseen[1]):
            listed(Question.DATA, unseen[0], unseen[1])
        forward, local = _by_kind(one.calls), _by_kind(two.calls)
        for question in (Question.FORWARD, Question.LOCAL_GRADIENTS):
            for key, value in forward[question].items():
                if key in local[question]:
                    module, what, _ = key
                    self._value(question, step, number, module, rank, value, local[question][key], what)
        listed(Question.LOSS, one.losses, two.losses)
        if one.clips and two.clips:
            listed(Question.NORM, [clip.value for clip in one.clips], [clip.value for clip in two.clips])
        elif one.clips or two.clips:
            self._add(Question.NORM, step, number, "", None, rank, f"{len(one.clips)} times", f"{len(two.clips)} times")
        self._named(Question.BUFFERS, step, rank, one.buffers, two.buffers, number)

    def _parameters(
        self, question: Question, step: int, number: int, first: Mapping[str, Copies], second: Mapping[str, Copies]
    ) -> None:
        for key, copies in first.items():
            other = self.pairs.keys.get(key, key)
            share = self._share(question, key, "", copies)
            if other in second:
                self.tally.count(question)
                found = copies_gap(copies, second[other])
                if found is not None:
                    self._add(question, step, number, key, found, share=share)

    def _named(
        self,
        question: Question,
        step: int,
        rank: int,
        one: Mapping[str, Value | None],
        two: Mapping[str, Value | None],
        number: int = 0,
    ) -> None:
        first = {_clean(key): value for key, value in one.items()}
        second = {_clean(key): value for key, value in two.items()}
        for key in sorted(first.keys() ^ second.keys()):
            texts = ("a buffer", "None") if key in first else ("None", "a buffer")
            self._add(question, step, number, key, None, rank, *texts)
        for key, value in first.items():
            other = second.get(key)
            if value is None or other is None:
                continue
            if value.dtype == other.dtype:
                self._value(question, step, number, key, rank, value, other)
            elif question is Question.BUFFERS:
                # Before the first forward FSDP1 has not cast its buffers yet.
                self._add(question, step, number, key, None, rank, value.dtype, other.dtype, "dtype")

    def _settings(self, step: int, number: int, first: Step, second: Step) -> None:
        one, two = (_by_parameter(side, step_) for side, step_ in ((self.before, first), (self.after, second)))
        back = {after: before for before, after in self.pairs.keys.items()}
        for key in one:
            if key in self.pairs.keys and self.pairs.keys[key] not in two:
                self._add(Question.SETTINGS, step, number, key, None, None, "in the optimizer", "not in the optimizer")
        for key in two:
            if key in back and back[key] not in one:
                text = "not in the optimizer", "in the optimizer"
                self._add(Question.SETTINGS, step, number, back[key], None, None, *text)
        for key, settings in one.items():
            others = two.get(self.pairs.keys.get(key, key), {})
            for name in sorted(settings.keys() & others.keys()):
                self.tally.count(Question.SETTINGS)
                if settings[name] != others[name]:
                    before, after = repr(settings[name]), repr(others[name])
                    self._add(Question.SETTINGS, step, number, key, None, None, before, after, name)

    def _state(
        self, question: Question, step: int, number: int, first: Mapping[str, Any], second: Mapping[str, Any]
    ) -> None:
        back = {after: before for before, after in self.pairs.keys.items()}
        for key in second:
            if back.get(key, key) not in first:
                self._add(question, step, number, back.get(key, key), None, None, "None", "present")
        for key, states in first.items():
            others = second.get(self.pairs.keys.get(key, key))
            if others is None:
                self._add(question, step, number, key, None, None, "present", "None")
                continue
            for name in sorted(states.keys() ^ others.keys()):
                texts = ("present", "None") if name in states else ("None", "present")
                self._add(question, step, number, key, None, None, *texts, name)
            for name in sorted(states.keys() & others.keys()):
                self.tally.count(question)
                share = self._share(question, key, name, states[name])
                found = state_gap(states[name], others[name])
                if found is not None:
                    self._add(question, step, number, key, found, what=name, share=share)

    def _share(self, question: Question, key: str, what: str, value: Any) -> float:
        """The greatest magnitude in a tensor over the greatest that it has had: noise is of that size.

        A bias of one element that happens to be near zero has the noise of what it was before.
        """
        of = _LATER.get(question, question), key, what
        copies = value if isinstance(value, tuple) else ()
        now = max((copy.greatest for copy in copies if copy is not None and not copy.nonfinite), default=0.0)
        most = self._greatest[of] = max(self._greatest.get(of, 0.0), now)
        return now / most if now else 1.0

    def _value(
        self,
        question: Question,
        step: int,
        number: int,
        name: str,
        rank: int,
        one: Value | None,
        two: Value | None,
        what: str = "",
    ) -> None:
        self.tally.count(question)
        found = gap(one, two)
        if found is not None:
            self._add(question, step, number, name, found, rank, what=what)

    def _add(
        self,
        question: Question,
        step: int,
        number: int,
        name: str,
        found: Gap | None,
        rank: int | None = None,
        before: str = "",
        after: str = "",
        what: str = "",
        share: float = 1.0,
    ) -> None:
        if found is not None:
            before, after = found.before, found.after
        seen = Difference(question, step, name, before, after, found, rank, number, what, self._event, share)
        if found is not None:
            allowed = self._allowance(question, self._event, seen.subject)
            if seen.noise <= (max(allowed, NORM_ROUNDING) if question is Question.NORM else allowed):
                self.tally.rounded += question is Question.NORM
                return
        self.tally.add(seen)


def _clean(key: str) -> str:
    root, _, name = key.partition(":")
    wrappers = ("_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod")
    parts = [part for part in name.split(".") if part not in wrappers]
    return f"{root}:{'.'.join(parts[1:] if parts[:1] == ['module'] else parts)}"


def _tensors(forwards: Sequence[Forward], grad: bool) -> list[Value | None]:
    return [tensor for forward in forwards if forward.grad is grad for tensor in forward.tensors]


def _by_kind(calls: Sequence[Call]) -> dict[Question, dict[tuple[str, str, int], Value | None]]:
    """Calls by module, tensor and how many times that had been seen, in the order of execution."""
    found: dict[Question, dict[tuple[str, str, int], Value | None]] = {
        Question.FORWARD: {},
        Question.LOCAL_GRADIENTS: {},
    }
    seen: Counter[tuple[str, str]] = Counter()
    for call in calls:
        question = Question.LOCAL_GRADIENTS if call.what.startswith("gradient") else Question.FORWARD
        found[question][call.module, call.what, seen[call.module, call.what]] = call.value
        seen[call.module, call.what] += 1
    return found


def _by_parameter(recording: Recording, step: Step) -> dict[str, Mapping[str, Any]]:
    groups = recording.optimizers[step.optimizer].groups
    return {key: settings for group, settings in zip(groups, step.settings, strict=False) for key in group}


def first_differences(tally: Tally) -> Iterator[Difference]:
    """The earliest difference of each question, by event and then by the order of the questions."""
    firsts = [found[0] for question in Question if (found := tally.of(question))]
    yield from sorted(firsts, key=lambda difference: (difference.event, difference.question))
