"""Scripted coding agents go through the loop of SKILL.md: the right one ends equal, no other one gets exit 0."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsdp_migrate.cli import main
from tests.forked import PYTHON
from tests.trace.conftest import TORCHRUN, TRAIN

Capture = pytest.CaptureFixture[str]
Agent = Callable[[Path, dict[str, Any]], None]
#: Its log has a number that FSDP1 alone has, and its loss is looked at.
LOGS = TRAIN.replace('        clear(parts["net"])', '        parts["net"].state_dict()').replace(
    "        optimizer.step()\n",
    "        assert torch.isfinite(loss)\n        optimizer.step()\n"
    '        print("elements", parts["net"]._handle.flat_param.numel())\n',
)
PLACE = 'print("elements", parts["net"]._handle.flat_param.numel())'
#: The place with the comments that the rewrite put above it.
WITH_COMMENTS = r" +# TODO\(fsdp-migrate.*\n(?: +#.*\n)*(?= +" + re.escape(PLACE) + ")"


def edit(file: Path, pattern: str, instead: str) -> None:
    text, changes = re.subn(pattern, lambda _: instead, file.read_text())
    assert changes, pattern
    file.write_text(text)


def right(file: Path, item: dict[str, Any]) -> None:
    """Writes what the advice says, in place of code and comment."""
    assert "model.parameters()" in item["advice"]
    edit(file, WITH_COMMENTS, "")
    edit(file, re.escape(PLACE), 'print("elements", sum(p.to_local().numel() for p in parts["net"].parameters()))')


def lazy(file: Path, item: dict[str, Any]) -> None:
    """Takes the comment away."""
    edit(file, WITH_COMMENTS, "")


def idle(file: Path, item: dict[str, Any]) -> None:
    """Says that it is done."""


def silencing(file: Path, item: dict[str, Any]) -> None:
    lazy(file, item)
    edit(file, re.escape(PLACE), f"{PLACE}  # fsdp-migrate: ignore")


def hiding(file: Path, item: dict[str, Any]) -> None:
    lazy(file, item)
    edit(file, re.escape(PLACE), f"exec({PLACE!r}) if step > 9 else None")


def shortening(file: Path, item: dict[str, Any]) -> None:
    right(file, item)
    edit(file, r"range\(3\)", "range(2)")


def unchecking(file: Path, item: dict[str, Any]) -> None:
    right(file, item)
    edit(file, r" +assert torch.isfinite\(loss\)\n", "")


def reseeding(file: Path, item: dict[str, Any]) -> None:
    right(file, item)
    edit(file, r"manual_seed\(0\)", "manual_seed(1)")


def breaking(file: Path, item: dict[str, Any]) -> None:
    """Does the place, and changes what is trained."""
    right(file, item)
    edit(file, r"lr=0\.1", "lr=0.2")


def ends(agent: Agent, project: Path, capsys: Capture) -> tuple[list[int], list[int]]:
    """What `done` answered on the way, and the exit codes of the two commands that decide at the end."""
    (project / "train.py").write_text(LOGS, encoding="utf-8")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, "commit", "-qam", "before"], cwd=project, check=True)
    assert main(["rewrite", "--quiet", "."]) == 1
    answers: list[int] = []
    while len(answers) < 3:
        capsys.readouterr()
        main(["next", "--format", "json"])
        shown = json.loads(capsys.readouterr().out)
        if shown["item"] is None:
            if shown["rewrite"] is None:
                break
            main(["rewrite", "--quiet", "--allow-dirty", "."])
            continue
        if not answers:
            agent(project / shown["item"]["path"], shown["item"])
        answers.append(main(shown["item"]["done"].split()[1:]))
    checked = main(["check", "--since", "HEAD", "."])
    verified = main(["verify", "--before-ref", "HEAD", "--steps", "3", "--", PYTHON, *TORCHRUN, "train.py"])
    return answers, [checked, verified]


def test_the_right_one_ends_equal(project: Path, capsys: Capture) -> None:
    assert ends(right, project, capsys) == ([0], [0, 0])
    assert "bit for bit" in capsys.readouterr().out


@pytest.mark.parametrize("agent", [idle, lazy, silencing, hiding, shortening, unchecking, reseeding, breaking])
def test_no_other_one_gets_through(agent: Agent, project: Path, capsys: Capture) -> None:
    answers, gates = ends(agent, project, capsys)
    assert any(gates), (answers, gates)
    if agent in (idle, lazy, silencing, hiding, shortening, unchecking, reseeding):
        # Before anything has run.
        assert answers[0] == 1
        assert gates[0] == 1
