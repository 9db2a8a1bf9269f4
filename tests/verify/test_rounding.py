"""A rounding is equal as far as the run before, given the same rounding, carries it, and the verdict says which."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.compare.gap import agree, gap
from fsdp_migrate.verify.compare.noise import NO_ROUNDING, Rounding, rounding_of
from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.report import verdict_text
from fsdp_migrate.verify.verdict import Verdict, with_rounding
from tests.forked import PYTHON
from tests.pool import Pool
from tests.verify import rounded
from tests.verify.test_verify_command import commit, told

Record = Callable[..., Recording]


@pytest.fixture
def record(pool: Pool, tmp_path: Path) -> Record:
    def run(side: str, limit: float, late: float = 1.0, rounding: Rounding = NO_ROUNDING) -> Recording:
        out = tmp_path / f"{side}-{rounding.most}-{late}"
        orders: dict[str, Any] = {"scale": rounding.scale, "rounding": rounding.sizes}
        pool.run(rounded.run, 2, str(out), side, limit, late, orders)
        return read(out)

    return run


def judged(record: Record, limit: float, late: float) -> tuple[Verdict, Verdict]:
    """What is said bit for bit, and with the measured effect of the rounding."""
    before, after = record("before", limit), record("after", limit, late)
    bare = verdict_of(before, after)
    assert bare.first is not None and bare.cause is not None
    assert (bare.cause.cause, bare.first.question) == ("shared-input", Question.LOCAL_GRADIENTS)
    rounding = rounding_of(bare.comparison, bare.first)
    again = record("before", limit, rounding=rounding)
    return bare, with_rounding(verdict_of(before, after, rounded=again, rounding=rounding), bare.cause)


@pytest.mark.parametrize("limit", [0.0, 0.01])
def test_what_a_rounding_explains_is_equal_and_its_cause_is_named(record: Record, limit: float) -> None:
    bare, found = judged(record, limit, late=1.0)
    assert (bare.exit_code, found.exit_code) == (1, 0)
    assert bare.cause is not None and "--no-repeat to measure" in bare.cause.cure
    *_, cause, cure, _, _, _, _, last = verdict_text.lines(found)
    assert cause.startswith("cause: the gradient of output 0 of encoder differs within rounding")
    assert cause.endswith("(FSDP122)") and "Nothing to do" in cure
    assert last.startswith("equal within the measured effect of rounding: ")


def test_what_it_does_not_explain_is_different_and_nothing_says_that_all_is_well(record: Record) -> None:
    _, found = judged(record, 0.0, late=2.0)
    assert found.exit_code == 1
    assert found.first is not None and (found.first.question, found.first.event) == (Question.GRADIENTS, 1)
    assert any(
        note.startswith("the measured effect is too small to explain it: the gradient of") for note in found.notes
    )
    assert not any("othing is" in line for line in verdict_text.lines(found))


PROGRAM = """
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import MixedPrecision
from torch.distributed.fsdp.wrap import ModuleWrapPolicy


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(16, 16)
        self.layers = nn.ModuleList(nn.TransformerDecoderLayer(16, 2, 16, 0.0) for _ in range(3))

    def forward(self, x):
        context = self.encoder(x).relu()
        for layer in self.layers:
            x = layer(x, context)
        return x


torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{Path.cwd()}/store", rank=0, world_size=1)
torch.manual_seed(0)
low = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
policy = ModuleWrapPolicy({nn.TransformerDecoderLayer})
model = FSDP(Decoder(), auto_wrap_policy=policy, mixed_precision=low, device_id=torch.device("cpu"))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for step in range(3):
    x = torch.randn(33, 16, generator=torch.Generator().manual_seed(step))
    model(x).float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_command_looks_for_the_module_and_measures_what_its_rounding_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM, encoding="utf-8")
    commit(tmp_path)
    code, text = told(capsys, "--steps", "2", "--", PYTHON, "train.py")
    assert code == 0, text
    assert "cause: the gradient of output 0 of encoder differs within rounding" in text
    assert "Nothing to do" in text and "(FSDP122)" in text
    assert text.splitlines()[-1].startswith("equal within the measured effect of rounding: ")


def test_only_the_gradients_that_differed_are_rounded_and_replicas_alike(record: Record) -> None:
    rounding = Rounding({"0:encoder.weight": 0.01})
    plain, moved = record("whole", 0.0), record("whole", 0.0, rounding=rounding)
    for key, copies in moved.steps[0].grads.items():
        assert agree(copies), key
        found = gap(plain.steps[0].grads[key][0], copies[0])
        assert (found is not None and 1e-3 < found.relative <= 0.011) == (key == "0:encoder.weight")
    again = gap(plain.steps[1].grads["0:encoder.weight"][0], moved.steps[1].grads["0:encoder.weight"][0])
    assert again is not None and again.ratio is None
