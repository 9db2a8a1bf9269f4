"""Programs on two ranks under ``fsdp-migrate trace``: what is recorded, and how far when they do not end well."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.trace.record import Trace
from tests.forked import PYTHON
from tests.trace.conftest import TRAIN

Run = Callable[..., tuple[int, Trace]]


def line_of(text: str) -> int:
    """The line of the program that begins with ``text``."""
    return next(number for number, line in enumerate(TRAIN.splitlines(), 1) if line.strip().startswith(text))


def seen(trace: Trace, text: str, expression: str) -> dict[str, int]:
    """What ``expression`` was in the line of the program that begins with ``text``."""
    number = line_of(text)
    column = TRAIN.splitlines()[number - 1].index(expression)
    wanted = (number, column, number, column + len(expression))
    return next((dict(v.kinds) for v in trace.files["train.py"].values if v.position == wanted), {})


def test_a_run_to_its_end(traced: Run, capfd: pytest.CaptureFixture[str]) -> None:
    code, trace = traced("--steps", "9")
    assert (code, trace.world, trace.ended, trace.steps) == (0, 2, {0: "over", 1: "over"}, 3)
    assert trace.files.keys() == {"train.py"}
    assert trace.files["train.py"].sha256 == hashlib.sha256(TRAIN.encode()).hexdigest()
    # Both of its calls count, on both ranks.
    assert seen(trace, "return thing", "thing") == {"model": 2, "module": 2}
    assert seen(trace, 'parts["net"].clip', 'parts["net"]') == {"model": 6}
    assert seen(trace, "optimizer = ", "holder.net") == {"model": 2}
    assert seen(trace, "optimizer.step", "optimizer") == {"optimizer over sharded": 6}
    # Nothing is read that would run code of the program.
    assert seen(trace, "holder.never", "holder.never") == {}
    lines = trace.files["train.py"].lines
    assert line_of("thing.load_state_dict") not in lines
    assert lines[line_of("loss.backward")] == {0: 3, 1: 3}
    assert lines[line_of("print(")] == {0: 1}
    (wrap,) = trace.wraps
    assert wrap["at"][:2] == ["train.py", line_of("parts = ")]
    assert (wrap["units"], wrap["batch norm"], wrap["optimizers before"]) == ([""], [], [])
    assert wrap["arguments"] == {"device_id": "cpu"}
    assert [read[2:] for read in trace.reads if "state_dict" in read[2]] == [("state_dict", "FULL_STATE_DICT", 2)]
    out = capfd.readouterr().out.splitlines()
    assert out[0] == f"train.py:{line_of('parts = ')}: wraps Sequential in 1 unit, FULL_SHARD, no BatchNorm"
    assert out[2] == "3 steps on 2 of 2 ranks"


def test_it_stops_after_the_steps(traced: Run) -> None:
    code, trace = traced("--steps", "2")
    assert (code, trace.ended, trace.steps) == (0, {0: "steps", 1: "steps"}, 2)
    assert line_of("return thing") not in trace.files["train.py"].lines


def test_a_crash_leaves_what_was_seen(project: Path, traced: Run, capfd: pytest.CaptureFixture[str]) -> None:
    broken = TRAIN.replace("    clear(nn.Linear(2, 2))", "    raise OSError('no space left')")
    (project / "train.py").write_text(broken, encoding="utf-8")
    code, trace = traced("--steps", "9")
    assert code == 1
    assert trace.steps == 3
    assert seen(trace, "return thing", "thing")["model"] >= 1
    assert "OSError: no space left" in capfd.readouterr().err


def test_what_does_not_end_is_stopped(project: Path, traced: Run, capfd: pytest.CaptureFixture[str]) -> None:
    hanging = TRAIN.replace("    clear(nn.Linear(2, 2))", "    import threading\n    threading.Event().wait()")
    (project / "train.py").write_text(hanging, encoding="utf-8")
    code, trace = traced("--steps", "9", "--timeout", "12")
    assert (code, trace.ended, trace.steps) == (1, {0: "running", 1: "running"}, 3)
    out, err = capfd.readouterr()
    assert "3 steps on 2 of 2 ranks, rank 0 until it was stopped, rank 1 until it was stopped" in out
    assert "did not end within 12 seconds" in err


def test_a_program_without_torch_is_an_error(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (project / "train.py").write_text("print('nothing')\n", encoding="utf-8")
    assert main(["trace", "--", PYTHON, "train.py"]) == 2
    assert "ran no code below" in capfd.readouterr().err
    assert not (project / "trace.json").exists()


def test_an_empty_module_is_not_taken_for_another(project: Path, traced: Run) -> None:
    for name in ("own", "site-packages/later", "site-packages/latest"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("")
    program = TRAIN.replace("from torch import nn\n", "from torch import nn\nimport sys, own\n", 1)
    program = program.replace(
        "    clear(nn.Linear(2, 2))\n", "    sys.path.append('site-packages')\n    import later, latest\n"
    )
    (project / "train.py").write_text(program)
    code, trace = traced("--steps", "9")
    assert (code, trace.ended, trace.steps, trace.notes) == (0, {0: "over", 1: "over"}, 3, ())
    assert not any("site-packages" in path for path in trace.files)
