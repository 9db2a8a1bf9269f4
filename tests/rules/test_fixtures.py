"""Every rule on whole programs: what the rewriter makes of them, and whether both versions train the same numbers."""

from __future__ import annotations

import contextlib
import importlib.util
import math
import traceback
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsdp_rules.engine.registry import all_rules
from tests.compiling import collect_dead_models
from tests.parity.cpu import fsdp1_on_cpu
from tests.parity.ordered import sums_in_rank_order
from tests.pool import ROOT, Pool, WorkerError
from tests.rules.helpers import check_rewrites, findings

DIRECTORY = ROOT / "fixtures" / "rewrite"
FIXTURES = tuple(sorted(path.parent.name for path in DIRECTORY.glob("*/before.py")))
#: The model and the loop of all programs, by the module's place.
COMMON = {"fixtures/rewrite/common": (DIRECTORY / "common.py").read_text(encoding="utf-8")}

# A (2, 2) mesh needs four ranks; everything else trains on two.
FOUR_RANKS = {
    "FSDP102-sharding-strategy-hybrid": "two nodes of two",
    "FSDP107-process-group-and-mesh-groups": "two nodes of two",
    "FSDP107-process-group-and-mesh-own-group": "two groups of two",
    "FSDP107-process-group-and-mesh-chosen": "two nodes of two",
    "FSDP123-shared-configuration-mesh": "two nodes of two",
    "FSDP109-param-init-fn-rank-0": "one rank with values, three without",
}

# What torch itself refuses on the machine that runs the tests, before or after: neither version can be trained.
NOT_RUN = {
    "FSDP105-cpu-offload-always": "both FSDP1 and CPUOffloadPolicy() pin memory, which needs an accelerator",
}

# What the rewriter leaves to a human does not run until the human was there: it stops at the line under the TODO.
STOPS = {
    "FSDP211-copies": ("AssertionError", "FSDP does not support deepcopy"),
    "FSDP222-gradient-data": ("AssertionError", "total += parameter.grad.pow(2).sum()"),
    "FSDP227-parameter-numbers": ("NotImplementedError", "dist.all_reduce(total)"),
    "FSDP230-converted-models": ("AssertionError", "uniform original parameter dtype"),
    "FSDP235-indirect-access": ("AttributeError", 'operator.attrgetter("module")(model)'),
    "FSDP303-get-state-dict-type": ("AttributeError", "settings.state_dict_type"),
    "FSDP310-local-state-dict": ("KeyError", "StateDictType.LOCAL_STATE_DICT"),
}

# What the rewriter leaves to a human because it runs under FSDP2, but gives other numbers.
DIFFERS = {
    "FSDP121-unused-parameters": "the head that no step uses decays under FSDP1 alone",
    "FSDP207-name-surgery-counted-on": "names no longer start with what the program looks for",
    "FSDP233-flat-names": "the biases no longer decay, since they have names of their own",
    "FSDP213-parameter-groups": "the matrices decay, since their shards are no longer 1-D",
    "FSDP214-rank-guards": "rank 0 reports other norms than those of its flat shards",
    "FSDP215-native-clip": "all ranks clip by the same norm",
    "FSDP216-hand-reduced-norm": "each rank adds what is the norm of all ranks already",
    "FSDP217-parameter-data": "nothing decays",
    "FSDP219-parameter-attributes": "all parameters decay",
    "FSDP228-whole-parameter-optimizers": "ratios of norms are of whole parameters",
    "FSDP229-replaced-parts": "FSDP1's model keeps its head, and its wrapper has another",
    "FSDP238-cleared-between": "the gradients of the head, with which the model ends, are cleared each time",
    "FSDP239-stale-parameters": "a forward computes with what was changed after the one before it",
    "FSDP241-new-names": "gradients are reduced in every second step alone",
    "FSDP226-random-values": "the numbers drawn for DTensors are others",
    "FSDP312-sharded-tensor": "nothing is a ShardedTensor any more",
    "FSDP317-saved-parameters": "no tensor of the file is a plain one",
}


@dataclass(frozen=True)
class Failure:
    """What a program raised on a rank."""

    kind: str
    text: str


Outcome = list[Any]
Outcomes = Mapping[tuple[str, str], Outcome]


def source(fixture: str, side: str) -> str:
    return (DIRECTORY / fixture / f"{side}.py").read_text()


def test_every_rule_has_a_fixture() -> None:
    """A program that a framework runs needs the framework: the rules about those are tested where it is installed."""
    trained = {rule.id for rule in all_rules() if not type(rule).__module__.startswith("fsdp_rules.hosts.")}
    assert {fixture.split("-")[0] for fixture in FIXTURES} == trained


def test_fixtures_are_named_after_their_rules() -> None:
    names = tuple(f"{rule.id}-{rule.name}" for rule in all_rules())
    assert [fixture for fixture in FIXTURES if not fixture.startswith(names)] == []


def test_exceptions_are_about_fixtures() -> None:
    assert {*FOUR_RANKS, *NOT_RUN, *STOPS, *DIFFERS} <= set(FIXTURES)


@pytest.mark.parametrize("fixture", FIXTURES)
def test_before_becomes_after(fixture: str) -> None:
    before = source(fixture, "before")
    check_rewrites(before, source(fixture, "after"), **COMMON)
    assert fixture.split("-")[0] in {found.rule for found in findings(before, **COMMON)}


@pytest.fixture(scope="module")
def outcomes(pool: Pool) -> Outcomes:
    """What every version of every fixture returned on each rank, or a :class:`Failure` for it."""
    programs = [(fixture, side) for fixture in FIXTURES if fixture not in NOT_RUN for side in ("before", "after")]
    return {
        **_trained(pool, 2, [program for program in programs if program[0] not in FOUR_RANKS]),
        **_trained(pool, 4, [program for program in programs if program[0] in FOUR_RANKS]),
    }


def _trained(pool: Pool, world_size: int, programs: list[tuple[str, str]]) -> Outcomes:
    """Run the programs as one job; if they take each other down, each as a job of its own, so that one is to blame."""
    try:
        ranks = pool.run(run_programs if world_size == 2 else in_rank_order, world_size, programs, timeout=300)
    except WorkerError as error:
        if len(programs) == 1:
            return {programs[0]: [Failure("WorkerError", str(error))]}
        return {key: value for one in programs for key, value in _trained(pool, world_size, [one]).items()}
    return {program: list(results) for program, *results in zip(programs, *ranks, strict=True)}


def run_programs(rank: int, world_size: int, programs: Iterable[tuple[str, str]]) -> Outcome:
    """On a worker: what each program's ``run()`` returns, or a :class:`Failure`."""
    return [_run(fixture, side) for fixture, side in programs]


def in_rank_order(rank: int, world_size: int, programs: list[tuple[str, str]]) -> Outcome:
    """On a worker: what the programs return, with sums that do not depend on where in a buffer a number stands."""
    with sums_in_rank_order():
        return run_programs(rank, world_size, programs)


def _run(fixture: str, side: str) -> Any:
    path = DIRECTORY / fixture / f"{side}.py"
    if "torch.compile" in source(fixture, side):
        collect_dead_models()
    try:
        with _prepared(path):
            spec = importlib.util.spec_from_file_location(f"{fixture.replace('-', '_')}_{side}", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module.run()
    except Exception as error:
        return Failure(type(error).__name__, traceback.format_exc())


@contextlib.contextmanager
def _prepared(path: Path) -> Iterator[None]:
    with fsdp1_on_cpu() if "FullyShardedDataParallel" in path.read_text() else contextlib.nullcontext():
        yield


@pytest.mark.parametrize("fixture", [fixture for fixture in FIXTURES if fixture not in NOT_RUN])
def test_both_train_the_same(outcomes: Outcomes, fixture: str) -> None:
    before, after = outcomes[fixture, "before"], outcomes[fixture, "after"]
    _check_trained(before)
    if fixture in STOPS:
        for result, (kind, text) in ((result, STOPS[fixture]) for result in after):
            assert isinstance(result, Failure) and result.kind == kind and text in result.text, result
        return
    _check_trained(after)
    if fixture in DIFFERS:
        assert before != after, f"the numbers are equal, although {DIFFERS[fixture]}"
    else:
        assert before == after


def _check_trained(outcome: Outcome) -> None:
    for result in outcome:
        assert not isinstance(result, Failure), result.text
        assert result and all(math.isfinite(number) for number in result), result
    assert len({tuple(result) for result in outcome}) == len(outcome), "every rank trains on data of its own"
