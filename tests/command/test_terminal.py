"""The command with a real terminal at its end."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.report.by_file import elided

SOURCE = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

model = FSDP(model)
WRAPPERS = {"fsdp": FSDP, "text": "[bold]"}
"""


def without_escapes(seen: bytes) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen.decode(errors="replace")).replace("\r\n", "\n")


def on_terminal(
    *arguments: str, cwd: Path, code: int, columns: int = 100, watch: Callable[[str], None] = lambda seen: None
) -> str:
    """What a person sees, without the escape sequences; ``watch`` gets all of it so far, whenever there is more."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "fsdp_migrate", *arguments]
    process = subprocess.Popen(command, cwd=cwd, env=environment, stdin=follower, stdout=follower, stderr=follower)
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            # How Linux says that the other end was closed.
            break
        if not part:
            break
        seen += part
        watch(without_escapes(seen))
    os.close(leader)
    assert process.wait() == code, seen.decode()
    assert b"\x1b[" in seen
    return without_escapes(seen)


def test_progress_then_each_file_then_the_summary(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    seen = on_terminal("rewrite", "--torch", "2.13", "train.py", cwd=tmp_path, code=1)
    expected = [
        "Reading",
        "Rewriting",
        "Writing",
        "train.py  rewritten",
        "FSDP901 manual",
        ' WRAPPERS = {"fsdp": FSDP,',
    ]
    expected += ["2 safe", "1 file read, ", "\nNext: fsdp-migrate next train.py\n"]
    places = [seen.index(text) for text in expected]
    assert places == sorted(places)


def test_a_diff_in_colour(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    seen = on_terminal("rewrite", "--diff", "train.py", cwd=tmp_path, code=1)
    assert '\n WRAPPERS = {"fsdp": FSDP, "text": "[bold]"}\n' in seen
    assert (tmp_path / "train.py").read_text() == SOURCE


def test_a_rule_with_its_example(tmp_path: Path) -> None:
    seen = on_terminal("rules", "FSDP901", cwd=tmp_path, code=0)
    assert seen.index("FSDP901 unknown-fsdp1-use") < seen.index("Before") < seen.index("After")


@pytest.mark.parametrize("columns", [80, 120, 200])
def test_findings_fit_the_terminal_file_by_file(columns: int, tmp_path: Path) -> None:
    deep = tmp_path / "a_directory_with_a_long_name" / "and_another_one_inside_of_it" / "and_a_third_below_that"
    deep.mkdir(parents=True)
    for file in (tmp_path / "train.py", deep / "train_the_model.py"):
        file.write_text(SOURCE)
    (tmp_path / "bad.py").write_text("FSDP(\n")
    seen = on_terminal("check", "--torch", "2.13", ".", cwd=tmp_path, code=2, columns=columns)
    lines = seen[seen.rindex("\r") + 1 :].splitlines()
    assert max(map(len, lines)) <= columns
    whole = (deep / "train_the_model.py").relative_to(tmp_path).as_posix()
    assert (whole in lines) is (columns > len(whole))
    assert columns > len(whole) or "a_directory_with_a_long_name/.../and_a_third_below_that/train_the_model.py" in lines
    assert any(line.startswith("bad.py: error: could not parse as ") for line in lines)
    answer = subprocess.run(
        [sys.executable, "-m", "fsdp_migrate", "check", "--torch", "2.13", "--format", "json", "."],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    own = lines[lines.index("train.py") :]
    first = next(place for place, line in enumerate(own) if line.lstrip().startswith("4:21  FSDP901 manual  "))
    at = own[first].index("this use of")
    under = [line for line in own[first:] if line.startswith(" " * at)]
    assert 'WRAPPERS = {"fsdp": FSDP, "text": "[bold]"}' in [line.strip() for line in under]
    shown = " ".join(" ".join(lines).split())
    for finding in json.loads(answer.stdout)["findings"]:
        # A message is found with its words whole and in order, whichever lines they are on.
        message = finding["message"].removeprefix("FSDP1 code that rewrite would change on an assumption: ")
        assert (message in shown) is (finding["level"] != "safe")
    assert shown.count("2 safe FSDP101, FSDP110") == 2
    assert lines[-1] == "Next: fsdp-migrate rewrite --diff ."
    listed = on_terminal("check", "--verbose", ".", cwd=tmp_path, code=2, columns=columns)
    assert listed.count("FSDP110 safe") == 2


@pytest.mark.parametrize("option", ["--quiet", "--stats"])
@pytest.mark.parametrize("command", [["check"], ["rewrite", "--diff"]])
def test_a_summary_alone_fits_the_terminal_too(command: list[str], option: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    seen = on_terminal(*command, option, "train.py", cwd=tmp_path, code=1, columns=60)
    said = seen[seen.rindex("1 file" if "rewrite" in command else "1 source") :].splitlines()
    assert len(said) > 1 and max(map(len, said)) <= 60
    assert said[-1].startswith("Next: fsdp-migrate rewrite")
    assert ("1  FSDP901  manual  unknown-fsdp1-use" in seen) is (option == "--stats")
    assert "4:21" not in seen


@pytest.mark.parametrize(
    ("path", "width", "shown"),
    [
        ("a/b.py", 6, "a/b.py"),
        ("src/one/two/three.py", 16, "src/.../three.py"),
        ("src/one/two/three.py", 19, "src/.../three.py"),
        ("a_name_that_is_far_too_long.py", 12, "a_n...ong.py"),
    ],
)
def test_paths_are_cut_in_the_middle(path: str, width: int, shown: str) -> None:
    assert elided(path, width) == shown
