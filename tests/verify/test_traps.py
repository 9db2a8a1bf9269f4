"""Runs that must not be compared are refused with the reason, by both halves of the command."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.verify.compare.traps import Origin, trap, wrong_origin
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.runs.launch import own_traceback
from tests.forked import PYTHON
from tests.verify import variants
from tests.verify.test_recordings import lines, two_ranks
from tests.verify.test_verify_command import SHARDED, both, commit, told, write


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("recordings")
    variants.alone(str(directory))
    return directory / "alone"


@pytest.fixture(scope="module")
def recording(folder: Path) -> Recording:
    return read(folder)


def test_equal_recordings_may_be_compared(recording: Recording) -> None:
    assert trap(recording, recording) is None


@pytest.mark.parametrize("side", ["before", "after"])
def test_a_recorder_that_failed_on_one_side(recording: Recording, side: str) -> None:
    failed = replace(recording, failures=("TypeError: no digest",))
    pair = (failed, recording) if side == "before" else (recording, failed)
    assert trap(*pair) == f'the recorder failed in the run "{side}":\nTypeError: no digest'


def test_other_numbers_of_optimizers(recording: Recording) -> None:
    more = replace(recording, optimizers=recording.optimizers * 2)
    assert trap(recording, more) == "1 optimizers stepped before and 2 after: the runs do different work"


def test_other_numbers_of_steps_on_either_side(recording: Recording) -> None:
    fewer = replace(recording, steps=recording.steps[:-1])
    for pair, counts in (
        ((recording, fewer), "3 steps before and 2 after"),
        ((fewer, recording), "2 steps before and 3"),
    ):
        assert counts in (trap(*pair) or "")


def test_nothing_of_what_was_rewritten_ran(recording: Recording, tmp_path: Path) -> None:
    ran, rewritten = tmp_path / "train.py", tmp_path / "other.py"
    found = replace(recording, files=(str(ran),))
    assert wrong_origin(found, Origin(tmp_path, changed=(ran, rewritten)), "after") is None
    problem = wrong_origin(found, Origin(tmp_path, changed=(rewritten,)), "after")
    assert problem == 'none of the 1 rewritten files was imported by the run "after"; check the command'


@pytest.mark.parametrize(
    ("kinds", "says"),
    [
        (["fsdp2", "fsdp2"], None),
        (["fsdp1"], "trained with FSDP1, although fsdp.yaml now selects FSDP2"),
        (["fsdp2", "fsdp1"], "trained with FSDP1"),
        ([], "none of the 1 rewritten files was imported"),
    ],
)
def test_a_configuration_is_judged_by_what_was_trained(
    kinds: list[str], says: str | None, recording: Recording, tmp_path: Path
) -> None:
    units = tuple({"kind": kind} for kind in kinds)
    found = replace(recording, models=tuple(replace(model, units=units) for model in recording.models))
    problem = wrong_origin(found, Origin(tmp_path, changed=(tmp_path / "fsdp.yaml",)), "after")
    assert (problem is None) if says is None else says in (problem or "")


def test_ranks_that_recorded_different_numbers_of_steps(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, torn = (Path(shutil.copytree(folder, tmp_path / name)) for name in ("whole", "torn"))
    for copied in (whole, torn):
        two_ranks(copied)
    file = torn / "rank-1.jsonl"
    file.write_text("".join(line for line in lines(file) if json.loads(line).get("step") != variants.STEPS - 1))
    code = main(["verify", "compare", str(whole), str(torn)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "the ranks recorded different numbers of steps (rank 0: 3, rank 1: 2)" in err


def test_a_crash_of_the_run_after_shows_its_own_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "train.py")
    write(tmp_path / "other.py", body="raise ArithmeticError('the loss is gone')")
    code, text = told(capsys, "--no-repeat", "--steps", "1", *both("train.py 2 1", "other.py 2 1"))
    assert code == 2
    assert 'the run "after" failed with exit code 1:\nTraceback (most recent call last):' in text
    assert text.rstrip().endswith("ArithmeticError: the loss is gone")


def test_preflight_of_a_step_with_a_closure_looks_at_what_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(CLOSURE, encoding="utf-8")
    code = main(["preflight", "--format", "json", "--", PYTHON, "train.py"])
    out, err = capsys.readouterr()
    assert (code, err) == (1, "")
    (model,) = json.loads(out)["models"]
    assert [found["check"] for found in model["suspicions"]] == ["uninitialised"]


def test_preflight_names_what_is_known_of_an_optimizer_in_this_release(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    later = 'torch.__version__ = "2.12.0"\noptimizer = torch.optim.AdamW(model.parameters(), foreach=True)'
    Path("train.py").write_text(
        CLOSURE.replace("torch.nn.init.zeros_(model.weight)\n", "").replace(
            "optimizer = torch.optim.LBFGS(model.parameters())", later
        ),
        encoding="utf-8",
    )
    assert main(["preflight", "--", PYTHON, "train.py"]) == 0
    out, _ = capsys.readouterr()
    assert "note: the optimizer runs foreach under torch 2.12.0: from 2.12 on" in out
    assert main(["preflight", "--format", "json", "--", PYTHON, "train.py"]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert len(model["notes"]) == 1
    Path("train.py").write_text(Path("train.py").read_text().replace("foreach=True", "foreach=False"))
    assert main(["preflight", "--", PYTHON, "train.py"]) == 0
    assert "note:" not in capsys.readouterr().out


CLOSURE = """
import torch

model = torch.nn.Linear(3, 2)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.LBFGS(model.parameters())

def closure():
    optimizer.zero_grad()
    loss = model(torch.ones(4, 3)).square().mean()
    loss.backward()
    return loss

optimizer.step(closure)
raise SystemExit("it was to stop before")
"""


def test_preflight_shows_the_traceback_of_a_backward_that_fails_for_the_models_own_casts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(CASTS, encoding="utf-8")
    code = main(["preflight", "--", PYTHON, "train.py", "cast"])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert "failed with exit code 1:\nTraceback (most recent call last):" in err
    assert "in backward\n" in err
    assert "must have the same dtype" in err or "to have the same dtype" in err
    assert main(["preflight", "--", PYTHON, "train.py"]) == 0, capsys.readouterr()


#: A function of the program's own multiplies in the dtype that it is given: a cast behind it, and its backward is fed
#: fp32 for weights that mp_policy has cast to bf16.
CASTS = """
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x @ weight.T).float() if "cast" in sys.argv else x @ weight.T

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.T @ x


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.weight = torch.nn.Linear(3, 4), torch.nn.Parameter(torch.randn(2, 4))

    def forward(self, x):
        return Product.apply(self.inner(x), self.weight)


store = Path.cwd() / f"store-{len(sys.argv)}"
dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
torch.manual_seed(0)
model = fully_shard(Model(), mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
optimizer = torch.optim.SGD(model.parameters())
model(torch.randn(4, 3)).sum().backward()
optimizer.step()
raise SystemExit("it was to stop before")
"""


def test_a_crash_of_what_rewrite_made_names_what_was_left_to_do_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    by_hand = SHARDED.replace("for step in range(2):", "print(model.training_state)\nfor step in range(2):")
    Path("train.py").write_text(by_hand, encoding="utf-8")
    commit(tmp_path)
    code, text = told(capsys, "--no-repeat", "--steps", "1", "--", PYTHON, "train.py")
    assert code == 2
    error, note = text.index("AttributeError: "), text.index("note: left to do by hand: train.py:")
    assert error < note


LOST = """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 3, in <module>
[rank1]: RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:35988.
"""
OWN = """Traceback (most recent call last):
  File "train.py", line 9, in <module>
ValueError: no such data
"""
CHILD = """Traceback (most recent call last):
  File "torch/distributed/run.py", line 1019, in run
ChildFailedError:
======
Root Cause (first observed failure):
[0]:
  exitcode  : -11 (pid: 4079)  (SIGSEGV)
======
"""
SPAWN = """Traceback (most recent call last):
  File "train.py", line 111, in main
torch.multiprocessing.spawn.ProcessRaisedException:

-- Process 1 terminated with the following error:
"""
USAGE = "usage: train.py --out OUT\ntrain.py: error: the following arguments are required: --out\n"
EXIT = (
    "W1128 04:50:01.3 15068 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process 15094\n"
    "E1128 04:50:01.4 15068 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 2)\n"
    f"{CHILD.replace('-11 (pid: 4079)  (SIGSEGV)', '2 (pid: 4079)')}"
)


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        (LOST + OWN + CHILD, OWN),
        ("\n".join(OWN.splitlines()[:2]) + "\n" + OWN + CHILD, OWN),
        (LOST + CHILD, CHILD[CHILD.index("Root") : CHILD.rindex("======")]),
        (LOST, LOST.replace("[rank1]: ", "")),
        (SPAWN + OWN, OWN),
        (f"{USAGE}{EXIT}", f"step 0\n{USAGE}{EXIT[EXIT.index('Root') : EXIT.rindex('======')]}"),
    ],
    ids=["its own", "cut off", "a signal", "nothing else", "a rank that it spawned", "an exit"],
)
def test_the_rank_that_failed_is_shown_before_those_that_lost_it(tmp_path: Path, printed: str, shown: str) -> None:
    log = tmp_path / "output.log"
    log.write_text(f"step 0\n{printed}", encoding="utf-8")
    assert own_traceback(log) == shown.rstrip("\n")
