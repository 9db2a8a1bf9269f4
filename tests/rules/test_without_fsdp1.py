"""The rewriter's output, native and for the shim, trains the same on a torch that has lost FSDP1."""

from __future__ import annotations

import ast
import importlib.util
import re
import traceback
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fsdp_rules.settings import Settings
from fsdp_rules.verdict.result import Changed
from tests.compiling import collect_dead_models
from tests.pool import ROOT, Pool
from tests.rules.helpers import rewrite
from tests.rules.test_fixtures import FIXTURES, FOUR_RANKS, NOT_RUN, Failure, Outcome, source
from tests.without_fsdp1 import block

#: Native output in which names of FSDP1 remain, which no torch without FSDP1 runs.
REMAINS = {
    "FSDP103-auto-wrap-policy-asked": "the policies that the program is given are FSDP1's, and their module is kept",
    "FSDP104-mixed-precision-given": "the MixedPrecision that the program is given is FSDP1's, and is read",
    "FSDP119-subclass": "left to a human: a subclass stays FSDP1",
    "FSDP303-get-state-dict-type": "left to a human: the current kind of state is read",
    "FSDP310-local-state-dict": "left to a human: flat parameters",
    "FSDP312-sharded-tensor": "left to a human: tests for ShardedTensor",
    "FSDP904-name-in-string": "left to a human: the class is named in a string",
}
#: Output that needs something else than torch.
NEEDS_MORE = {"FSDP903-fairscale": "fairscale, with FSDP1 beside it where it is missing"}
#: What is left to a human under ``--to shim`` too.
REMAINS_ON_SHIM = {
    "FSDP100-import": "left to a human: a star import",
    "FSDP312-sharded-tensor": "left to a human: tests for ShardedTensor",
    "FSDP902-private-api": "left to a human: a private function of FSDP1",
}

ERRORS = ("ImportError", "ModuleNotFoundError", "AttributeError", "NameError")
NOT_TRAINED = {*FOUR_RANKS, *NOT_RUN, *NEEDS_MORE}

#: The helpers that no fixture needs.
OTHER_HELPERS = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 6))
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        return self.head(self.body(x))


def loadable(model, optimizer, state):
    return FSDP.optim_state_dict_to_load(model, optimizer, state)


def run():
    torch.manual_seed(0)
    net = Net()
    model = FSDP(net, device_id=torch.device("cpu"), use_orig_params=True, ignored_modules=[net.head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(dist.get_rank())
    numbers = [float(len(FSDP.fsdp_modules(model, root_only=True)))]
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 6, generator=generator)).square().mean()
        loss.backward()
        model.clip_grad_norm_(0.1)
        optimizer.step()
        numbers.append(loss.item())
        if step == 1:
            state = FSDP.optim_state_dict(model, optimizer)
            optimizer.load_state_dict(loadable(model, optimizer, state))
    return numbers
"""

OTHERS = "other-helpers"
#: One fixture for each rule, since the shim carries them all; and natively those that need more than fully_shard.
CARRIED = (OTHERS, *{name.split("-")[0]: name for name in reversed(FIXTURES) if name not in NOT_TRAINED}.values())
NATIVE = (
    OTHERS,
    *(
        name
        for name in FIXTURES
        if name not in NOT_TRAINED
        and (name in REMAINS or re.search(r"fsdp_compat|distributed\.checkpoint", source(name, "after")))
    ),
)


@cache
def output(program: str, to: str) -> str:
    """What a rewrite makes of a fixture or of :data:`OTHER_HELPERS`."""
    before = OTHER_HELPERS if program == OTHERS else source(program, "before")
    result = rewrite(before, Settings(to=to))
    return result.source.decode() if isinstance(result, Changed) else before


def written(directory: Path) -> dict[tuple[str, str], Path]:
    """The outputs on disk, by target and program."""
    targets = [("native", program) for program in NATIVE] + [("shim", program) for program in CARRIED]
    paths = {(to, program): directory / f"{to}-{program}.py" for to, program in targets}
    for (to, program), path in paths.items():
        path.write_text(output(program, to))
    return paths


def run_programs(rank: int, world_size: int, paths: list[Path], blocked: bool) -> Outcome:
    """Worker: what each program's ``run()`` returns, or a :class:`Failure`."""
    if blocked:
        block()
    return [_run(path) for path in paths]


def _run(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"program_{abs(hash(path))}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    if "torch.compile" in path.read_text():
        collect_dead_models()
    try:
        spec.loader.exec_module(module)
        return module.run()
    except Exception as error:
        return Failure(type(error).__name__, traceback.format_exc())


@pytest.fixture(scope="module")
def outcomes(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], list[Outcome]]:
    """By target and program: what it gave on the ranks with FSDP1 in torch, and on those without."""
    paths = written(tmp_path_factory.mktemp("outputs"))
    with Pool(2) as others:
        both = [each.run(run_programs, 2, list(paths.values()), each is others, timeout=900) for each in (pool, others)]
    return {key: [[rank[index] for rank in ranks] for ranks in both] for index, key in enumerate(paths)}


@pytest.mark.parametrize("fixture", [fixture for fixture in NATIVE if fixture not in REMAINS])
def test_native_output_trains_without_fsdp1(outcomes: Any, fixture: str) -> None:
    _check_same(*outcomes["native", fixture])


@pytest.mark.parametrize("fixture", [fixture for fixture in CARRIED if fixture not in REMAINS_ON_SHIM])
def test_output_for_the_shim_trains_without_fsdp1(outcomes: Any, fixture: str) -> None:
    _check_same(*outcomes["shim", fixture])


REMAINING = [*(("native", fixture) for fixture in REMAINS), *(("shim", fixture) for fixture in REMAINS_ON_SHIM)]


@pytest.mark.parametrize(("to", "fixture"), REMAINING)
def test_what_remains_of_fsdp1_is_an_error(outcomes: Any, to: str, fixture: str) -> None:
    for result in outcomes[to, fixture][1]:
        assert isinstance(result, Failure) and result.kind in ERRORS, result


def _check_same(before: Outcome, after: Outcome) -> None:
    for first, second in zip(before, after, strict=True):
        if isinstance(first, Failure):
            assert isinstance(second, Failure) and second.kind == first.kind, second
        else:
            assert not isinstance(second, Failure), second.text
            assert first == second


def test_the_programs_show_every_helper() -> None:
    """Each function of ``fsdp_compat`` that a rule writes into native output is called in one that was trained here."""
    rules = [ast.parse(path.read_text()) for path in (ROOT / "rules" / "fsdp_rules").rglob("*.py")]
    constants = [str(node.value) for tree in rules for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    # What is read of an earlier run's output, fsdp_compat.wrap, is trained as enable_wrap's. guard_optimizers is
    # written where a wrap is an argument of another call, which none of these has: its text alone is tested.
    # tests/parity/test_wrapper_reads.py trains process_group, which only models with groups of their own need.
    named = {each for each in constants if re.fullmatch(r"fsdp_compat\.[a-z_]+", each)}
    named -= {"fsdp_compat.guard_optimizers", "fsdp_compat.process_group", "fsdp_compat.wrap"}
    shown = "\n".join(output(program, "native") for program in NATIVE if program not in REMAINS)
    assert len(named) > 5
    assert {name for name in named if not re.search(rf"\b{re.escape(name)}\b", shown)} == set()
