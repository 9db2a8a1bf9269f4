"""Exit codes, output and what is written, through ``main``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from fsdp_migrate.cli import cli, main
from fsdp_migrate.report.diff import unified
from fsdp_migrate.report.rulebook import pages

pytestmark = pytest.mark.usefixtures("word_engine")

Commit = Callable[[], None]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_nothing_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert main(["rewrite", "."]) == 0
    out, err = capsys.readouterr()
    assert out == "1 file read, no FSDP1 code found. Nothing to do.\n"
    assert err == ""


def test_rewrites_in_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("model = FSDP(model)\n")
    assert main(["rewrite", "a.py"]) == 0
    assert (tmp_path / "a.py").read_text() == "model = fully_shard(model)\n"
    assert capsys.readouterr() == (
        "The project requires no torch version, so the output is for torch 2.6, the first with FSDP2. --torch "
        "selects another.\na.py: rewritten (FSDP101 x1)\n1 file read, 1 with findings, 1 rewritten. Written for "
        "torch 2.6 (no "
        "file requires one). Next: train a few steps and compare the losses; fsdp-migrate undo a.py restores the "
        "old files.\n",
        "",
    )


def test_what_is_left_by_hand_is_found_where_it_stands_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("x = 1\nFSDP.by_hand()\ny = 2\n")
    assert main(["rewrite", "."]) == 1
    assert (tmp_path / "a.py").read_text() == "x = 1\npass # TODO\nFSDP.by_hand()\ny = 2\n"
    out, _ = capsys.readouterr()
    assert "a.py:3:1: FSDP101 manual: native [bold]manual[/bold]\n    do it\n" in out
    assert "1 place left to do by hand. Written for torch " in out
    assert out.endswith(" Next: fsdp-migrate next\n")
    assert main(["rewrite", "."]) == 1
    assert "a.py:3:1:" in capsys.readouterr().out


def test_diff_goes_alone_to_stdout_and_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("import os\nFSDP(model)\n")
    assert main(["rewrite", "--diff", "."]) == 0
    out, err = capsys.readouterr()
    assert out == "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,2 @@\n import os\n-FSDP(model)\n+fully_shard(model)\n"
    assert "1 would be rewritten. Written for torch " in err
    assert err.endswith(" Next: fsdp-migrate rewrite .\n")
    assert (tmp_path / "a.py").read_text() == "import os\nFSDP(model)\n"


def test_settings_reach_the_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("FSDP.assumed\n")
    assert main(["rewrite", "--to", "shim", "a.py"]) == 0
    assert "a.py:1:1: FSDP101 review: shim " in capsys.readouterr().out


def test_json_report(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("FSDP(FSDP.by_hand)\n")
    (tmp_path / "b.py").write_text("FSDP # raise\n")
    (tmp_path / "c.py").write_text("x = 1\n")
    assert main(["rewrite", "--diff", "--report", "out.json", "."]) == 2
    content = json.loads((tmp_path / "out.json").read_text())
    assert content["version"] == 2
    assert content["summary"] == {
        "files_scanned": 3,
        "files_with_fsdp1": 1,
        "files_changed": 1,
        "findings_by_rule": {"FSDP101": 2},
        "findings_by_level": {"safe": 1, "review": 0, "manual": 1, "info": 0},
        "errors": 1,
    }
    assert content["findings"][1] == {
        "rule": "FSDP101",
        "name": "constructor-call",
        "path": "a.py",
        "line": 1,
        "column": 6,
        "end_line": 1,
        "end_column": 10,
        "level": "manual",
        "message": "native [bold]manual[/bold]",
        "advice": "do it",
        "statement": 0,
        "wrapped": "",
    }
    assert [error["path"] for error in content["errors"]] == ["b.py"]


def test_markdown_report(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("FSDP(x)\nFSDP.by_hand\n")
    assert main(["rewrite", "--report", "out.md", "--report", "out.json", "."]) == 1
    text = (tmp_path / "out.md").read_text()
    assert "| FSDP101 | constructor-call | 2 |" in text
    assert "## Left to do by hand\n\n- `a.py:3` FSDP101: native \\[bold\\]manual\\[/bold\\]. What to do: do it" in text
    assert (tmp_path / "out.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rewrite", "absent"], "no such file or directory: absent"),
        (["rewrite", "--report", "x.txt", "."], "must end in .html, .json or .md"),
        (["rewrite", "--report", "absent/x.md", "."], "there is no directory absent"),
        (["rewrite", "--to", "fsdp3", "."], "'fsdp3' is not one of 'native', 'shim'"),
        (["rewrite", "--jobs", "0", "."], "0 is not in the range x>=1"),
        (["rewrite", "--select", "FSDP1,FSDB203", "."], "there is no rule FSDB203; the nearest are FSDP"),
        (["rewrite", "--ignore", "TOR101", "."], "there is no rule TOR101"),
        (["rewrite", "--frobnicate", "."], "No such option"),
        (["rules", "FSDP9010"], "there is no rule FSDP9010; the nearest are FSDP901"),
        (["rules", "102x"], "there is no rule 102x; the nearest is FSDP102"),
        (["frobnicate"], "No such command 'frobnicate'; fsdp-migrate --help lists them"),
        (["explian"], "No such command 'explian'; did you mean explain?"),
        (["chekc"], "No such command 'chekc'; did you mean check or checkpoint?"),
    ],
)
def test_bad_calls(arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("FSDP(model)\n")
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert (tmp_path / "a.py").read_text() == "FSDP(model)\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.py"]


def test_a_rule_is_found_by_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "102"]) == 0
    by_number = capsys.readouterr().out
    assert main(["rules", "FSDP102"]) == 0
    assert by_number == capsys.readouterr().out
    assert main(["explain", "102"]) == 0
    assert by_number == capsys.readouterr().out
    assert by_number.startswith("# FSDP102 ")


def test_rules_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules", "--format", "json"]) == 0
    listed = json.loads(capsys.readouterr().out)["rules"]
    assert [rule["id"] for rule in listed] == [page.id for page in pages()]
    assert set(listed[0]) == {"id", "name", "doc", "before", "after", "language", "summary"}
    assert main(["rules", "102", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["rules"] == [rule for rule in listed if rule["id"] == "FSDP102"]


@pytest.mark.parametrize("command", ["rewrite", "check"])
def test_a_selection_that_leaves_no_rule_is_refused(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--select", "FSDP10", "--ignore", "FSDP1"]) == 2
    assert "no rule is left: --ignore FSDP1 covers --select FSDP10" in capsys.readouterr().err
    assert main([command, "--ignore", "FSDP"]) == 2
    assert "no rule is left: --ignore FSDP covers all rules" in capsys.readouterr().err


def test_a_rewrite_of_nothing_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "notes.txt").write_text("FSDP(model)\n")
    assert main(["rewrite"]) == 0
    said = "0 files read: there is no Python file, notebook or configuration under .\n"
    assert capsys.readouterr().out == said


@pytest.mark.parametrize("command", [["rewrite", "--diff"], ["check", "--min-level", "manual"]])
def test_quiet_and_verbose(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.py").write_text("FSDP(x)\nFSDP.assumed\nFSDP.by_hand\n")
    (tmp_path / "bad.py").write_text("FSDP(\n")
    outputs = {}
    for option in ("--quiet", "", "--verbose"):
        assert main([*command, *filter(None, [option])]) == 2
        out, err = capsys.readouterr()
        # With --diff the patch alone is on standard output.
        outputs[option] = (err if command[0] == "rewrite" else out + err).splitlines()
    summary = [line for line in outputs[""] if "could not be" in line]
    assert set(summary) <= set(outputs["--quiet"])
    assert [line for line in outputs["--quiet"] if line not in summary] == [
        line for line in outputs[""] if line.startswith("bad.py: error: ")
    ]
    assert set(outputs[""]) < set(outputs["--verbose"])
    assert "settings: no pyproject.toml has [tool.fsdp-migrate]" in outputs["--verbose"]
    assert "line length: not set by the project" in outputs["--verbose"]
    if command[0] == "rewrite":
        assert any("a.py:1:1: FSDP101 safe: " in line for line in outputs["--verbose"])


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_the_command(shell: str) -> None:
    page = (Path(__file__).parents[2] / "docs" / "rewrite.md").read_text(encoding="utf-8")
    assert f"_FSDP_MIGRATE_COMPLETE={shell}_source fsdp-migrate" in page
    environment = {**os.environ, "_FSDP_MIGRATE_COMPLETE": f"{shell}_source"}
    script = "import sys; sys.argv[0] = 'fsdp-migrate'; from fsdp_migrate.cli import entry_point; entry_point()"
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert "_FSDP_MIGRATE_COMPLETE" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("check",),
        ("rewrite",),
        ("status",),
        ("check", "--baseline"),
        ("check", "--output"),
        ("rewrite", "--report"),
        ("checkpoint", "inspect"),
        ("checkpoint", "convert"),
        ("verify", "--report"),
        ("verify", "run", "--", "torchrun"),
        ("preflight", "--", "torchrun"),
        ("tune", "--", "torchrun"),
    ],
)
def test_paths_are_completed(words: tuple[str, ...]) -> None:
    assert [item.type for item in ShellComplete(cli, {}, "fsdp-migrate", "").get_completions([*words], "src/tr")] == [
        "file"
    ]


def test_rules_are_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rules"]) == 0
    listed = capsys.readouterr().out.splitlines()
    assert any(line.startswith("FSDP901  unknown-fsdp1-use") for line in listed)
    assert listed == sorted(listed)
    assert main(["rules", "fsdp901"]) == 0
    page = capsys.readouterr().out
    assert page.startswith("# FSDP901 unknown-fsdp1-use\n")
    assert "## Before\n\n```python\n" in page
    assert main(["rules", "unknown-fsdp1-use"]) == 0
    assert capsys.readouterr().out == page


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fsdp-migrate ")


def test_dirty_files_stop_everything(tmp_path: Path, commit: Commit, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("clean.py", "modified.py", "unrelated.py"):
        (tmp_path / name).write_text("FSDP(x)\n")
    commit()
    (tmp_path / "modified.py").write_text("FSDP(y)\n")
    (tmp_path / "unrelated.py").write_text("z\n")
    (tmp_path / "new.py").write_text("FSDP(n)\n")
    assert main(["rewrite", ".", "--report", "r.json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "nothing was written: rewriting 2 files" in err
    assert "\n  modified.py\n  new.py\n" in err
    assert "--allow-dirty" in err
    assert (tmp_path / "clean.py").read_text() == "FSDP(x)\n"
    assert not (tmp_path / "r.json").exists()

    assert main(["rewrite", "--diff", "."]) == 0
    assert capsys.readouterr().out.count("--- a/") == 3

    assert main(["rewrite", ".", "--allow-dirty"]) == 0
    assert (tmp_path / "new.py").read_text() == "fully_shard(n)\n"


@pytest.mark.parametrize("name", ["sub dir/é.py", ":x.py", "[a].py"])
def test_staged_files_are_dirty_too(name: str, tmp_path: Path, commit: Commit, git: Callable[..., str]) -> None:
    commit()
    (tmp_path / "sub dir").mkdir()
    (tmp_path / name).write_text("FSDP(x)\n")
    git("add", "--all")
    assert main(["rewrite", "."]) == 2
    assert (tmp_path / name).read_text() == "FSDP(x)\n"
    git("commit", "--quiet", "--message", "more")
    assert main(["rewrite", "."]) == 0


def test_a_broken_repository_is_not_taken_for_a_clean_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.py").write_text("FSDP(x)\n")
    assert main(["rewrite", "."]) == 2
    assert "git answered: " in capsys.readouterr().err
    assert (tmp_path / "a.py").read_text() == "FSDP(x)\n"
    assert main(["rewrite", ".", "--allow-dirty"]) == 0


@pytest.mark.parametrize("below", [".", "sub"])
def test_git_applies_the_diff(
    below: str,
    tmp_path: Path,
    commit: Commit,
    git: Callable[..., str],
    capsysbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "sub" / "deep").mkdir(parents=True)
    sources = {
        "sub/plain.py": b"FSDP(x)\n",
        "sub/deep/two words.py": b"FSDP(x)",
        "sub/latin.py": b"# coding: latin-1\ns = '\xe9'\nFSDP(x)\n",
        "sub/crlf.py": b"a\r\nFSDP(x)\r\nb\r\n",
        'sub/"new\nline\\.py': b"'\x0c'\rb\nFSDP(x)\n",
    }
    for name, data in sources.items():
        (tmp_path / name).write_bytes(data)
    commit()
    monkeypatch.chdir(tmp_path / below)
    assert main(["rewrite", "--diff", "."]) == 0
    patch = capsysbinary.readouterr().out
    subprocess.run(["git", "apply", "-"], input=patch, cwd=tmp_path / below, check=True)
    for name, data in sources.items():
        assert (tmp_path / name).read_bytes() == data.replace(b"FSDP(", b"fully_shard("), name


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("a/b.py", b"--- a/a/b.py\n"),
        ("two words.py", b"--- a/two words.py\t\n"),
        ('"q".py', b'--- "a/\\042q\\042.py"\n'),
        ("\udcff.py", b"--- a/\xff.py\n"),
    ],
)
def test_names_in_a_diff(name: str, header: bytes) -> None:
    assert next(unified(name, b"x", b"y")) == header


def test_diff_of_a_repository_elsewhere_is_relative_to_it(
    tmp_path: Path, commit: Commit, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.py").write_text("FSDP(x)\n")
    commit()
    monkeypatch.chdir("/")
    assert main(["rewrite", "--diff", str(tmp_path / "sub")]) == 0
    assert capsys.readouterr().out.startswith(f"--- a/{tmp_path.relative_to('/')}/sub/a.py\n")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert main(["rewrite", "--diff", str(tmp_path / "sub")]) == 0
    assert capsys.readouterr().out.startswith("--- a/sub/a.py\n+++ b/sub/a.py\n")


@pytest.mark.parametrize("words", [command.split() for command in (
    "", "check", "rewrite", "undo", "next", "done", "skill", "status", "rules", "verify", "verify run",
    "verify record", "verify compare", "preflight", "tune", "lsp", "checkpoint", "checkpoint inspect",
    "checkpoint convert",
)], ids=" ".join)  # fmt: skip
def test_help_fits_a_terminal_of_80_columns(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = CliRunner().invoke(cli, [*words, "--help"], terminal_width=80).output
    assert "Usage: " in said
    assert [line for line in said.splitlines() if len(line) > 80] == []


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from fsdp_migrate.cli import main; code = main(['rewrite', '--help']);"
        "print(sorted({'libcst', 'rich', 'torch', 'multiprocessing'} & set(sys.modules))); sys.exit(code)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_a_tree_without_fsdp_is_never_parsed(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    code = (
        "import sys; from fsdp_migrate.cli import main; code = main(['rewrite', '.']);"
        "print(sorted({'libcst', 'rich', 'torch'} & set(sys.modules))); sys.exit(code)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert answer.stdout.splitlines()[-1] == "[]"


def test_an_interrupt_between_two_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp_migrate.tree import writing

    for name in ("a.py", "b.py", "c.py"):
        (tmp_path / name).write_text("FSDP(x)\n")
    real = writing.os.replace
    calls = iter([None, KeyboardInterrupt()])

    def replace(source: Path, target: Path) -> None:
        # What is replaced is kept first, in files of other names.
        trouble = next(calls) if target.suffix == ".py" else None
        if trouble:
            raise trouble
        real(source, target)

    monkeypatch.setattr(writing.os, "replace", replace)
    assert main(["rewrite", "."]) == 130
    assert capsys.readouterr().err == "interrupted: 1 of 3 files were rewritten, each completely\n"
    texts = [entry.read_text() for entry in sorted(tmp_path.glob("*.py"))]
    assert texts == ["fully_shard(x)\n", "FSDP(x)\n", "FSDP(x)\n"]


def test_an_interrupt_before_writing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsdp_migrate.pipeline import run

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    (tmp_path / "a.py").write_text("FSDP(x)\n")
    monkeypatch.setattr(run, "_analyse", interrupt)
    assert main(["rewrite", "."]) == 130
    assert capsys.readouterr().err.strip() == "interrupted: nothing was written"
    assert (tmp_path / "a.py").read_text() == "FSDP(x)\n"
