"""``fsdp-migrate migrate``: from FSDP1 to a proven FSDP2 in one command, gone on with, and taken back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.migration.one_page import assumptions
from fsdp_rules.verdict.finding import Finding, Level
from tests.forked import PYTHON
from tests.trace.conftest import TORCHRUN, TRAIN

COMMAND = ("--", PYTHON, *TORCHRUN, "train.py")
#: Its state is taken of one model alone.
MOVES = TRAIN.replace('        clear(parts["net"])', '        parts["net"].state_dict()')
#: Fails once the model is FSDP2's.
REFUSES = MOVES.replace(
    "    holder = ", "    if hasattr(parts['net'], 'reshard'):\n        raise OSError('no')\n    holder = "
)


def committed(root: Path, text: str) -> None:
    (root / "train.py").write_text(text, encoding="utf-8")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, "commit", "-qam", "other"], cwd=root, check=True)


def test_a_training_is_moved_and_proven(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed(project, MOVES)
    code = main(["migrate", "--steps", "2", "--report", "../page.html", *COMMAND])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "wraps Sequential in 1 unit, FULL_SHARD, no BatchNorm" in out
    assert "train.py: " in out
    assert "values over 2 steps on 2 ranks" in out
    assert "trace: these lines did not run: train.py:" in out
    assert "== Left to do by hand\nnothing\n" in out
    text = (project / "train.py").read_text(encoding="utf-8")
    assert "fully_shard(" in text
    assert "FullyShardedDataParallel" not in text
    assert "<h2>Left to do by hand</h2>" in (project.parent / "page.html").read_text(encoding="utf-8")
    assert not (project / ".git" / "fsdp-migrate").exists()


def test_what_the_runs_covered_is_not_left_open() -> None:
    def found(line: int, ran: bool | None) -> Finding:
        return Finding("FSDP101", "call", "train.py", line, 1, line, 2, Level.REVIEW, "assumes it", ran=ran)

    opened, covered = (
        ("train.py:1 FSDP101 assumes it", "train.py:3 FSDP101 assumes it"),
        "train.py:2 FSDP101 assumes it",
    )
    assert list(assumptions([found(1, False), found(2, True), found(3, None)])) == [
        ("Based on an assumption", [*opened]),
        ("Assumptions on lines that ran, which the comparison above covers", [covered]),
    ]
    assert list(assumptions([])) == [("Based on an assumption", ["nothing"])]


def test_what_fails_is_kept_gone_on_with_and_taken_back(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed(project, REFUSES)
    assert main(["migrate", "--steps", "2", *COMMAND]) == 2
    assert "OSError: no" in capsys.readouterr().err
    moved = (project / "train.py").read_text(encoding="utf-8")
    assert "fully_shard(" in moved
    # A second one does not begin over the first.
    assert main(["migrate", *COMMAND]) == 2
    assert "--continue or --abort" in capsys.readouterr().err
    # Nothing is put back over work that is neither.
    (project / "train.py").write_text(moved + "# mine\n", encoding="utf-8")
    assert main(["migrate", "--abort"]) == 2
    assert "train.py: changed since, so nothing is restored" in capsys.readouterr().err
    assert (project / "train.py").read_text(encoding="utf-8") == moved + "# mine\n"
    (project / "train.py").write_text(moved, encoding="utf-8")
    assert main(["migrate", "--abort"]) == 0
    assert (project / "train.py").read_text(encoding="utf-8") == REFUSES
    assert main(["migrate", "--abort"]) == 2
    assert "no migration was started here" in capsys.readouterr().err


def test_a_migration_that_did_nothing_yet_is_started_otherwise(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["migrate", "--steps", "2", "--", PYTHON, *TORCHRUN, "absent.py"]) == 2
        err = capsys.readouterr().err
        assert "can't open file" in err
        assert "--continue" not in err
    assert main(["migrate", "--abort"]) == 2


def test_it_goes_on_with_what_a_human_has_mended(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    committed(project, REFUSES)
    assert main(["migrate", "--steps", "2", *COMMAND]) == 2
    moved = (project / "train.py").read_text(encoding="utf-8")
    mended = moved.replace("        raise OSError('no')", "        pass")
    (project / "train.py").write_text(mended, encoding="utf-8")
    # The finding about the test of `reshard` is left.
    assert main(["migrate", "--continue"]) == 1
    assert "values over 2 steps on 2 ranks" in capsys.readouterr().out


def test_uncommitted_work_is_asked_about(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "train.py").write_text(TRAIN + "# more\n", encoding="utf-8")
    assert main(["migrate", *COMMAND]) == 2
    assert "pass --allow-dirty" in capsys.readouterr().err
    assert not (project / ".git" / "fsdp-migrate").exists()
