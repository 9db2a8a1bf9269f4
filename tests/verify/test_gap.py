"""How two recorded tensors are told apart where their samples, or their numbers of replicas, do not show it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fsdp_migrate.verify.compare.compare import Comparison
from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.compare.gap import copies_gap, gap
from fsdp_migrate.verify.recorder.digest import Range
from fsdp_migrate.verify.recorder.values import Values
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.recording.value import Value, read_value
from tests.verify import variants

#: The largest relative difference that passes for rounding in fp32.
ROUNDING = 2.0**-16


def recorded(tensor: torch.Tensor) -> Value:
    values, into = Values(), {}  # type: ignore[var-annotated]
    values.put(into, "x", tensor, Range(0, tensor.numel(), tensor.numel()))
    values.write()
    found = read_value(into["x"])
    assert found is not None
    return found


@pytest.mark.parametrize("numel", [1000, 100_000])
def test_a_sign_between_the_samples_is_no_rounding(numel: int) -> None:
    tensor = torch.randn(numel, generator=torch.Generator().manual_seed(0))
    flipped = tensor.clone()
    at = int(tensor[1:50].abs().argmax()) + 1
    flipped[at].neg_()
    found = gap(recorded(tensor), recorded(flipped))
    assert found is not None and found.relative > ROUNDING


def test_rounding_is_as_large_as_the_elements_that_it_moved() -> None:
    generator = torch.Generator().manual_seed(0)
    tensor = torch.randn(100_000, generator=generator)
    towards = torch.where(torch.randn(100_000, generator=generator) > 0, torch.inf, -torch.inf)
    for rounded in (tensor * (1 + 2.0**-22), torch.nextafter(tensor, towards)):
        found = gap(recorded(tensor), recorded(rounded))
        assert found is not None and found.relative < 2.0**-20


def test_each_replica_is_compared_where_the_other_side_has_one() -> None:
    one, other = recorded(torch.ones(3)), recorded(torch.full((3,), 2.0))
    assert copies_gap((one,), (one, one)) is None
    for before, after in (((one,), (one, other)), ((one, other), (one,)), ((one,), (one, None))):
        assert copies_gap(before, after) is not None


def test_complex_numbers_are_compared_by_their_parts() -> None:
    tensor = torch.polar(torch.ones(40), torch.arange(40.0))
    assert gap(recorded(tensor), recorded(tensor.conj().conj())) is None
    found = gap(recorded(tensor), recorded(tensor.conj()))
    assert found is not None and found.ulps
    halves = [(slice(0, 15), 0), (slice(15, 40), 15)]
    digests = []
    for part, start in halves:
        values, into = Values(), {}  # type: ignore[var-annotated]
        values.put(into, "x", tensor[part], Range(start, tensor[part].numel(), 40))
        values.write()
        digests.append(into["x"][0])
    assert sum(digests) % 2**64 == recorded(tensor).digest


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    directory = tmp_path_factory.mktemp("recordings")
    variants.alone(str(directory))
    return read(directory / "alone")


def test_state_and_buffers_of_one_side_are_differences(recording: Recording) -> None:
    first, *rest = recording.steps
    key = next(iter(first.state))
    (rank,) = first.ranks
    name = next(iter(rank.buffers))
    without = {
        Question.STATE: [
            replace(first, state={k: v for k, v in first.state.items() if k != key}),
            replace(first, state={**first.state, key: {k: v for k, v in first.state[key].items() if k != "exp_avg"}}),
        ],
        Question.BUFFERS: [replace(first, ranks=(replace(rank, buffers={}),))],
    }
    for question, steps in without.items():
        for step in steps:
            other = replace(recording, steps=(step, *rest))
            for before, after in ((recording, other), (other, recording)):
                (found,) = Comparison(before, after).tally.of(question)
                assert found.name == (key if question is Question.STATE else name)
                assert "None" in (found.before, found.after)


@pytest.mark.parametrize(
    ("change", "relative"),
    [(lambda x: x * (1 + 2.0**-20), 2.0**-20), (lambda x: x + 1, math.inf)],
    ids=["rounded", "counted"],
)
def test_a_state_of_one_element_is_rounded_as_others_are_and_a_count_is_not(
    recording: Recording, change: Callable[[float], float], relative: float
) -> None:
    first, *rest = recording.steps
    key = next(iter(first.state))
    value, name = (3.0, "step") if relative == math.inf else (0.3, "exp_avg")

    def holding(number: float) -> Recording:
        changed = replace(first, state={**first.state, key: {**first.state[key], name: number}})
        return replace(recording, steps=(changed, *rest))

    (found,) = Comparison(holding(value), holding(change(value))).tally.of(Question.STATE)
    assert found.relative == pytest.approx(relative, rel=1e-3)


@pytest.mark.parametrize(("was", "differ"), [(1.0, 0), (1e-4, 1)])
def test_noise_is_relative_to_the_greatest_that_a_tensor_has_had(recording: Recording, was: float, differ: int) -> None:
    first, second, *rest = recording.steps
    key = next(iter(first.weights))
    starts = [
        replace(one, weights={**one.weights, key: (recorded(torch.tensor([was])),)}) for one in recording.optimizers
    ]

    def ending(number: float) -> Recording:
        one = replace(first, weights={**first.weights, key: (recorded(torch.tensor([was])),)})
        two = replace(second, weights={**second.weights, key: (recorded(torch.tensor([number])),)})
        return replace(recording, optimizers=tuple(starts), steps=(one, two, *rest))

    comparison = Comparison(ending(1e-4), ending(1e-4 * (1 + 1e-3)), lambda question, event, subject: 1e-6)
    assert len(comparison.tally.of(Question.WEIGHTS)) == differ
