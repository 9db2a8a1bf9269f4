"""``check`` on sources, through ``main``: exit codes, levels, options, settings, and what cannot be done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fsdp_migrate.cli import main

Capture = pytest.CaptureFixture[str]
IMPORT = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
#: A line of each level, for ``WordEngine``.
LEVELS = "FSDP(model)\nFSDP.assumed\nFSDP.by_hand\n"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_nothing_left(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.py").write_text("from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n")
    (tmp_path / "b.py").write_text("x = 1\n")
    assert main(["check", "."]) == 0
    assert capsys.readouterr() == ("2 source files and 0 checkpoints checked, no findings.\n", "")


def test_a_check_of_nothing_says_so(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "notes.txt").write_text("FSDP(model)\n")
    assert main(["check", "."]) == 0
    assert capsys.readouterr().out == (
        "0 source files and 0 checkpoints checked, no findings. No source files or checkpoints found under this path.\n"
    )


@pytest.mark.usefixtures("word_engine")
def test_every_level_is_told_in_words_that_fit_a_gate_and_nothing_is_written(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.py").write_text(LEVELS)
    assert main(["check", "a.py"]) == 1
    assert capsys.readouterr().out == (
        "a.py:1:1: FSDP101 safe: native [bold]safe[/bold]\n"
        "a.py:2:1: FSDP101 review: native [bold]review[/bold]\n"
        "a.py:3:1: FSDP101 manual: native [bold]manual[/bold]\n"
        "    do it\n"
        "1 source file and 0 checkpoints checked, 3 findings. "
        "A rewrite would move 2 of them, 1 on a stated assumption. Next: fsdp-migrate rewrite --diff a.py\n"
    )
    assert (tmp_path / "a.py").read_text() == LEVELS
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.py"]


@pytest.mark.usefixtures("word_engine")
@pytest.mark.parametrize(("level", "shown"), [("info", 3), ("safe", 3), ("review", 2), ("manual", 1)])
def test_what_is_below_the_level_is_counted_and_does_not_fail(
    level: str, shown: int, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "a.py").write_text(LEVELS)
    assert main(["check", "--min-level", level, "."]) == 1
    out = capsys.readouterr().out
    assert out.count("a.py:") == shown
    assert ("below level" in out) == (shown < 3)
    (tmp_path / "a.py").write_text("FSDP(model)\n")
    assert main(["check", "--min-level", level, "."]) == (1 if shown == 3 else 0)


def test_notes_are_told_but_fail_only_where_they_are_asked_for(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.py").write_text(
        "from torch.distributed.fsdp import fully_shard\n" + IMPORT + "if fsdp_version == 2:\n"
        "    fully_shard(model)\n"
        "else:\n"
        "    model = FSDP(model)\n"
    )
    assert main(["check", "."]) == 0
    out = capsys.readouterr().out
    assert " info: unchanged: there is an FSDP2 branch next to it" in out
    assert "no findings and" in out
    assert main(["check", "--min-level", "info", "."]) == 1


def test_a_check_finds_what_a_rewrite_finds(capsys: Capture, tmp_path: Path) -> None:
    from fsdp_migrate.pipeline import run
    from fsdp_migrate.pipeline.engine import RulesEngine
    from fsdp_migrate.report.progress import NoProgress
    from fsdp_rules.settings import Settings

    project = str(Path(__file__).parents[2] / "fixtures" / "projects" / "vision")
    rewritten = run.rewrite(run.Request((project,), Settings(), diff=True, jobs=1), RulesEngine(), NoProgress())
    assert main(["check", "--format", "json", project]) == 1
    told = json.loads(capsys.readouterr().out)["findings"]
    assert [(one["rule"], one["path"], one["line"], one["level"]) for one in told] == [
        (one.rule, one.path, one.line, one.level.value) for one in rewritten.findings
    ]
    assert all(mine["message"].endswith(theirs.message) for mine, theirs in zip(told, rewritten.findings, strict=True))


def test_selecting_a_rule_does_not_change_what_it_says(tmp_path: Path, capsys: Capture) -> None:
    project = str(Path(__file__).parents[2] / "fixtures" / "projects" / "minigpt")
    main(["check", "--format", "json", project])
    everything = json.loads(capsys.readouterr().out)["findings"]
    main(["check", "--format", "json", "--select", "FSDP2,fsdp304", "--ignore", "FSDP202", project])
    some = json.loads(capsys.readouterr().out)["findings"]
    rules = {finding["rule"] for finding in some}
    assert "FSDP201" in rules
    assert "FSDP304" in rules
    assert some == [one for one in everything if one["rule"] in rules]
    assert not any(rule.startswith("FSDP1") or rule == "FSDP202" for rule in rules)


def test_comments_silence_a_rule_on_their_line(tmp_path: Path, capsys: Capture) -> None:
    source = IMPORT + "with FSDP.summon_full_params(m):{}\n    pass\n"
    (tmp_path / "a.py").write_text(source.format(""))
    assert main(["check", "--select", "FSDP203", "."]) == 1
    (tmp_path / "a.py").write_text(source.format("  # fsdp-migrate: ignore[FSDP203]"))
    assert main(["check", "--select", "FSDP203", "."]) == 0


@pytest.mark.parametrize("name", ["FSDP2003", "fsdp203", "E501"])
def test_a_comment_that_names_no_rule_is_refused(name: str, tmp_path: Path, capsys: Capture) -> None:
    text = '"""Say # fsdp-migrate: ignore[NONE] to silence NONE."""\n' + IMPORT
    (tmp_path / "a.py").write_text(f"{text}FSDP(m)  # fsdp-migrate: ignore[FSDP101, {name}]\n")
    assert main(["check", "."]) == 2
    out = capsys.readouterr().out
    assert f"a.py: error: line 3: a comment ignores {name}, which is not a rule\n" in out
    assert "NONE" not in out


TRAP = (
    "import torch.distributed.checkpoint as dcp\n"
    "from torch.distributed._shard.sharded_tensor import ShardedTensor\n"
    "def resume(model, optimizer, path):\n"
    '    state = {"optimizer": optimizer.state_dict()}\n'
    "    dcp.load(state, checkpoint_id=path)\n"
    "    return [part for part in state if isinstance(part, ShardedTensor)]\n"
)


def test_traps_are_told_in_a_project_that_has_moved_and_in_no_other(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "resume.py").write_text(TRAP)
    assert main(["check", "."]) == 0
    (tmp_path / "train.py").write_text("from torch.distributed.fsdp import fully_shard\nfully_shard(model)\n")
    capsys.readouterr()
    assert main(["check", "."]) == 1
    out = capsys.readouterr().out
    assert "resume.py:4:27: FSDP313 manual: optimizer.state_dict() of a fresh optimizer is empty" in out
    assert " FSDP312 manual: FSDP2's states have DTensors" in out
    # A rewrite leaves a project alone that has no FSDP1.
    assert main(["rewrite", "--allow-dirty", "."]) == 0
    assert (tmp_path / "resume.py").read_text() == TRAP


def test_what_a_rewrite_left_to_be_done_is_left_until_it_is_done(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.py").write_text(
        IMPORT + "def build(net):\n    model = FSDP(net)\n    return [p for p in model.parameters() if p.ndim < 2]\n"
    )
    assert main(["check", "--min-level", "manual", "."]) == 1
    assert " 1 finding" in capsys.readouterr().out
    assert main(["rewrite", "."]) == 1
    text = (tmp_path / "a.py").read_text()
    assert "# TODO(fsdp-migrate FSDP213): " in text
    capsys.readouterr()
    assert main(["check", "."]) == 1
    out = capsys.readouterr().out
    assert "FSDP213 manual: p.ndim was 1 for every FSDP1 parameter" in out
    assert " 1 finding" in out
    (tmp_path / "a.py").write_text("\n".join(line for line in text.split("\n") if "TODO" not in line))
    assert main(["check", "."]) == 0
    # In a notebook a comment is a string of its JSON.
    cell = {"cell_type": "code", "source": ["# TODO(fsdp-migrate FSDP213): think\n", "x = 1"], "outputs": []}
    notebook = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]}
    (tmp_path / "n.ipynb").write_text(json.dumps(notebook, indent=1))
    assert main(["check", "--ignore", "FSDP1", "n.ipynb"]) == 1
    assert "n.ipynb:9:6: FSDP213 manual: left to do by hand: think\n" in capsys.readouterr().out
    # The TODOs of others are theirs.
    (tmp_path / "a.py").write_text("# TODO(fsdp-migrate): ask\n# TODO(fsdp-migrate X1): ask\nx = 1\n")
    assert main(["check", "a.py"]) == 0


def test_settings_of_the_project(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "a.py").write_text(IMPORT + "model = FSDP(model)\n")
    settings = tmp_path / "pyproject.toml"
    settings.write_text('[tool.fsdp-migrate]\nmin-level = "manual"\n')
    assert main(["check", "."]) == 0
    assert main(["check", "--min-level", "safe", "."]) == 1
    settings.write_text('[tool.fsdp-migrate]\nignore = ["FSDP1"]\n')
    assert main(["check", "."]) == 0
    assert main(["check", "--ignore", "FSDP2", "."]) == 1
    capsys.readouterr()
    # The settings of a project count also where something outside of it was named first.
    (tmp_path / "project").mkdir()
    (tmp_path / "a.py").rename(tmp_path / "project" / "a.py")
    settings.rename(tmp_path / "project" / "pyproject.toml")
    (tmp_path / "other").mkdir()
    assert main(["check", "other", "project"]) == 0


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (
            '[tool.fsdp-migrate]\nmin-level = "fatal"\n',
            "min-level = 'fatal': must be one of info, safe, review, manual",
        ),
        ("[tool.fsdp-migrate]\nbaseline = 3\n", "baseline = 3: must be the name of a file"),
        ("[tool.fsdp-migrate]\nmin_level = 3\n", "has no setting 'min_level': the nearest is 'min-level'"),
        ('[tool.fsdp-migrate]\nselect = ["FSDB"]\n', "there is no rule FSDB"),
        ("[tool.fsdp-migrate\n", "could not read"),
        ("x = " + "[" * 5000, "could not read"),
        ("\udcff", "could not read"),
    ],
    ids=["level", "baseline", "unknown", "rule", "broken", "nested", "not UTF-8"],
)
def test_settings_that_are_wrong(table: str, message: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "pyproject.toml").write_bytes(table.encode(errors="surrogateescape"))
    assert main(["check", "."]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Error: ")
    assert message in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "absent"], "no such file or directory: absent"),
        (["check", "--format", "xml", "."], "'xml' is not one of"),
        (["check", "--min-level", "high", "."], "'high' is not one of"),
        (["check", "--select", "FSDP1,FSDB203", "."], "there is no rule FSDB203; the nearest are FSDP"),
        (["check", "--ignore", "TOR101", "."], "there is no rule TOR101"),
        (["check", "--output", "absent/x", "."], "--output absent/x: there is no directory absent"),
        (["check", "--output", ".", "."], "--output .: there is no directory"),
        (["check", "--write-baseline", "absent/x", "."], "--write-baseline absent/x: there is no directory absent"),
        (["check", "--baseline", "x", "--write-baseline", "y", "."], "exclude each other"),
        (["check", "--jobs", "0", "."], "0 is not in the range x>=1"),
    ],
)
def test_bad_calls(arguments: list[str], message: str, tmp_path: Path, capsys: Capture) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("word_engine")
def test_one_bad_file_is_named_and_the_others_are_done(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "bad.py").write_text("def f(:\n  FSDP(x)\n")
    (tmp_path / "good.py").write_text("FSDP(x)\n")
    (tmp_path / "worse\n\x1b[31m.py").write_text("FSDP # raise\n")
    (tmp_path / "gone.py").symlink_to("absent.py")
    assert main(["check", "."]) == 2
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("good.py:1:1: FSDP101 safe: ")
    assert out[1].startswith("bad.py: error: could not parse as Python 3.")
    assert out[2] == "gone.py: error: could not read: No such file or directory"
    assert out[3].startswith("worse\\n\\x1b[31m.py: error: internal error: ZeroDivisionError")
    assert "1 finding. A rewrite would move it. 3 paths could not be checked." in out[4]


@pytest.mark.usefixtures("word_engine")
def test_what_git_ignores_is_passed_over(tmp_path: Path, commit: Callable[[], None], capsys: Capture) -> None:
    (tmp_path / ".gitignore").write_text("build/\n")
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "a.py").write_text("FSDP(x)\n")
    commit()
    assert main(["check", "."]) == 0
    assert main(["check", "build"]) == 1


@pytest.mark.usefixtures("word_engine")
def test_an_interrupt(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsdp_migrate.pipeline import run

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_analyse", interrupt)
    (tmp_path / "a.py").write_text("FSDP(x)\n")
    assert main(["check", "."]) == 130
    assert capsys.readouterr().err.strip() == "interrupted: nothing was written"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_an_answer_that_nobody_got_is_a_failure(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"{'a' * 200}{number}.py").symlink_to("absent.py")
    command = [sys.executable, "-m", "fsdp_migrate", "check", "."]
    with Path("/dev/full").open("wb") as full:
        answer = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (answer.returncode, answer.stderr) == (2, "Error: could not write the result: No space left on device\n")


@pytest.mark.parametrize("arguments", [["check", "--help"], ["check", "."]])
def test_nothing_heavy_is_imported_for_nothing(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    code = (
        f"import sys; from fsdp_migrate.cli import main; code = main({arguments!r});"
        "print(sorted({'libcst', 'rich', 'torch', 'picklescan', 'safetensors'} & set(sys.modules))); sys.exit(code)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_help_teaches(capsys: Capture) -> None:
    assert main(["check", "--help"]) == 0
    out = capsys.readouterr().out
    for part in ("--write-baseline known.json", "Exit code:", "sarif", "[tool.fsdp-migrate]", "ignore[FSDP203]"):
        assert part in out


STAYS = {
    "no_sync": "def step(model):\n    with model.no_sync():\n        pass\n",
    "hook": "def hook(model):\n    model.register_comm_hook(None, hook=print)\n",
    "no_sync, a rule left out": "def step(model):\n    with model.no_sync():\n        model(1)\n",
}
WRAPS = """\
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.nn.parallel import DistributedDataParallel as DDP


def build(model, kind):
    if kind == "ddp":
        return DDP(model)
    return FSDP(model)  # fsdp-migrate: ignore
"""


@pytest.mark.parametrize("form", STAYS)
def test_a_finding_that_edits_nothing_does_not_send_to_a_rewrite(form: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "steps.py").write_text(STAYS[form])
    (tmp_path / "build.py").write_text(WRAPS)
    options = ["--ignore", "FSDP301"] if "left out" in form else []
    assert main(["check", *options, "."]) == 1
    out = capsys.readouterr().out
    assert "would move" not in out and "fsdp-migrate rewrite" not in out
    assert "to read. A rewrite does not change them. Next: fsdp-migrate rules FSDP20" in out
    assert main(["check", *options, "--format", "json", "."]) == 1
    assert "that rewrite would change on an assumption" not in capsys.readouterr().out
    assert main(["rewrite", "."]) == 0
    assert (tmp_path / "steps.py").read_text() == STAYS[form]


def test_a_comment_beside_a_finding_moves_nothing(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "show.py").write_text(
        "from torch.distributed.fsdp import ShardingStrategy\n\nNAMES = {'a': ShardingStrategy.FULL_SHARD}\n\n\n"
        "def show(model):\n    if type(model).__name__ == 'FullyShardedDataParallel':\n"
        "        print(model.sharding_strategy)\n"
    )
    assert main(["check", "."]) == 1
    out = capsys.readouterr().out
    assert "FSDP902 manual" in out and "FSDP205 review" in out
    assert "would move" not in out


def test_what_moves_and_what_is_to_be_read_are_counted_apart(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "steps.py").write_text(STAYS["hook"])
    (tmp_path / "build.py").write_text(WRAPS.replace("  # fsdp-migrate: ignore", ""))
    main(["check", "."])
    out = capsys.readouterr().out
    assert "1 finding to read. A rewrite does not change them. Next: fsdp-migrate rewrite --diff ." in out
