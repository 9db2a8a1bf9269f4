"""``verify --plan``: what ``tune`` predicts is in the report, beside what a run counts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from tests.forked import PYTHON
from tests.verify.test_preflight_compare import PROGRAM
from tests.verify.test_verify_command import TORCHRUN

NATIVE = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

for block in net[:2]:
    fully_shard(block, mesh=init_device_mesh("cpu", (2,)))
model = fully_shard(net, mesh=init_device_mesh("cpu", (2,)))
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "old.py").write_text(PROGRAM)
    begin, end = PROGRAM.index("model = FSDP("), PROGRAM.index("torch.manual_seed(dist")
    (tmp_path / "new.py").write_text(PROGRAM[:begin] + NATIVE + PROGRAM[end:])
    return tmp_path


def test_what_was_planned_is_beside_what_was_counted(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = " ".join((PYTHON, *TORCHRUN[1:]))
    main(["tune", "--format", "json", "--", *run.split(), "old.py"])
    (program / "plan.json").write_text(capsys.readouterr().out)
    commands = ("--before", f"{run} old.py", "--after", f"{run} new.py")
    assert main(["verify", "--no-repeat", "--plan", "plan.json", *commands]) == 0
    told = [line for line in capsys.readouterr().out.splitlines() if re.match("note: (planned|counted)", line)]
    # Exactly what a step counts, under FSDP1 and under FSDP2.
    assert all("5 gathers (2.5 KiB), 3 scatters (1.3 KiB), " in line for line in told[:2])
    assert all("5 gathers (2.6 KiB), 3 scatters (1.4 KiB), " in line for line in told[2:])
    assert len(told) == 4
    assert told[0].startswith("note: planned before (FSDP1): ")
    assert told[2].startswith("note: planned after (now): ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan.json is not what fsdp-migrate tune --format json prints"),
        ('{"layouts": [], "fsdp1": null}', "plan.json was made of a program without FSDP1"),
        ('{"layouts": [], "fsdp1": {}}', "plan.json has no layout ''"),
    ],
)
def test_a_file_without_a_plan_is_refused(
    program: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (program / "plan.json").write_text(text)
    assert main(["verify", "--plan", "plan.json", "--", PYTHON, "old.py"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
