"""``verify`` on a terminal: how far each run is while it runs, then the table."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tests.command.test_terminal import on_terminal
from tests.forked import PYTHON
from tests.verify.test_verify_command import write

#: Waits in its second step until somebody writes to the pipe.
BODY = "step != 1 or (print('waits in step', step, flush=True), Path('pipe').read_text())"
#: A run, its steps and those asked for, its seconds, the last line that it printed.
SHOWN = r"(?P<run>before|after) +\S+ +(?P<step>\d+)/3 +(?P<seconds>\d+) s +(?P<line>\S.*?) *(\n|\r|$)"


def test_each_run_shows_step_seconds_and_last_line_and_then_comes_the_table(tmp_path: Path) -> None:
    write(tmp_path / "train.py", body=BODY)
    os.mkfifo(tmp_path / "pipe")
    answered: dict[str, re.Match[str]] = {}

    def answer(seen: str) -> None:
        for found in re.finditer(SHOWN, seen):
            if "waits" in found["line"] and found["run"] not in answered:
                answered[found["run"]] = found
                (tmp_path / "pipe").write_text("go on")

    program = f"{PYTHON} train.py 3 1"
    options = ("--no-repeat", "--steps", "3", "--timeout", "120", "--before", program, "--after", program)
    seen = on_terminal("verify", *options, cwd=tmp_path, code=0, watch=answer)
    assert {run: (found["step"], found["line"]) for run, found in answered.items()} == {
        "before": ("2", "waits in step 1"),
        "after": ("2", "waits in step 1"),
    }
    last = seen[max(found.end() for found in re.finditer(SHOWN, seen)) :]
    places = [last.index(text) for text in ("before and after", "initial weights", "seconds per step", "equal: ")]
    assert places == sorted(places)
