"""A run that resumes under migrated code, against one that never stopped: what is equal, and each cause by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fsdp_migrate.verify.causes.resume import RESUMING
from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.recording.recording import BadRecording
from fsdp_migrate.verify.recording.rest import rest
from tests.forked import PYTHON
from tests.pool import Pool
from tests.verify.resume_defects import COPIES, KINDS, Defect, Runs, defects, misses, spec_of
from tests.verify.test_verify_command import MINIGPT, TORCHRUN, commit, told

#: One of each kind.
CHOSEN = defects(len(KINDS))


@pytest.fixture(scope="module")
def runs(pool: Pool, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(pool, tmp_path_factory.mktemp("resumed"))


@pytest.mark.parametrize("original", ["True", "False"])
def test_a_migrated_program_resumes_bit_for_bit(runs: Runs, original: str) -> None:
    verdict = runs.verdict(None, spec_of("full", original, "adamw", "cosine"))
    assert (verdict.first, verdict.noise) == (None, "")
    assert verdict.comparison.tally.compared[Question.INITIAL_STATE] == 48


def test_on_another_number_of_ranks_only_the_order_of_sums_differs(runs: Runs) -> None:
    verdict = runs.verdict(None, spec_of("sharded folder", "True", "adamw", "plain", "2 to 4"))
    assert verdict.first is not None
    assert verdict.first.question is Question.GRADIENTS
    assert verdict.cause is not None
    assert verdict.cause.is_rounding
    assert verdict.comparison.tally.of(Question.INITIAL_STATE) == []


@pytest.mark.parametrize("defect", CHOSEN, ids=lambda defect: defect.kind.name)
def test_a_defect_is_named(runs: Runs, defect: Defect) -> None:
    assert list(misses(defect, runs.verdict(defect, defect.spec))) == []


def test_copies_of_what_the_file_has_once_are_named(runs: Runs) -> None:
    defect = Defect(COPIES, spec_of("full", "True", "adamw", "plain"))
    assert list(misses(defect, runs.verdict(defect, defect.spec))) == []


def test_every_cause_has_a_defect() -> None:
    assert {cause.name for cause in RESUMING} - {"nothing-loaded"} <= {kind.cause for kind in KINDS}
    assert {defect.kind for defect in CHOSEN} == set(KINDS)
    assert len({defect.name for defect in defects(100)}) == 100


def test_a_run_that_ended_before_is_refused(runs: Runs) -> None:
    never = runs.verdict(None, spec_of("full", "True", "adamw", "cosine")).comparison.before
    with pytest.raises(BadRecording, match="AdamW ran no step after 5: record more steps, or resume earlier"):
        rest(never, 5)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The program saves when it ends, so that the run that saves makes fewer steps."""
    root = tmp_path / "here"
    root.mkdir()
    shutil.copy(MINIGPT, root)
    commit(root)
    monkeypatch.chdir(root)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    start = [PYTHON, *TORCHRUN[1:], "train.py", "--out", "out"]
    saving, resuming = (" ".join([*start, *more]) for more in (
        ("--steps", "2"), ("--steps", "4", "--resume", "out/checkpoint.pt"),
    ))  # fmt: skip
    report = tmp_path / "report.json"
    options = ("--resume", "2", "--save-with", saving, "--resume-with", resuming, "--steps", "2", "--no-repeat")
    code, text = told(capsys, *options, "--report", str(report), "--", *start, "--steps", "9")
    assert code == 0, text
    assert "values over 2 steps on 2 ranks, resumed after step 2, bit for bit" in text
    questions = {row["question"]: row["compared"] for row in json.loads(report.read_text())["questions"]}
    assert questions["initial optimizer state"] > 0


def test_options_that_do_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = told(capsys, "--save-with", "a", "--", "b")
    assert (code, "--save-with and --resume-with need --resume" in text) == (2, True)
    code, text = told(capsys, "--resume", "3", "--before-ref", "HEAD", "--", "b")
    assert (code, "--resume runs HEAD's code and its rewrite" in text) == (2, True)
