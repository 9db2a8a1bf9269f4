"""Defaults from pyproject.toml."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from fsdp_migrate.cli import main
from fsdp_migrate.pipeline import run
from fsdp_migrate.tree.selection import SKIPPED_DIRECTORIES
from fsdp_migrate.tree.settings import KEYS, ProjectSettings, SettingsError, load
from fsdp_migrate.tree.toml import toml
from fsdp_migrate.tree.torch_release import TorchRelease
from fsdp_rules.settings import Settings

SHIM = Settings("shim", "never", ("FSDP1", "FSDP901"), ("FSDP102",), torch=(2, 7), raises_torch=False)
ASKED = TorchRelease((2, 7), "torch in [tool.fsdp-migrate]")

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = ROOT / "docs" / "settings.schema.json"
HEAD = "[tool.fsdp-migrate]"

FULL = """
[tool.fsdp-migrate]
select = ["FSDP1", "fsdp901"]
ignore = ["FSDP102"]
to = "shim"
helpers = "never"
torch = "2.7"
jobs = 2
"""


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[run.Request]:
    """What the command asks for, in place of doing it."""
    seen: list[run.Request] = []

    def rewrite(request: run.Request, *others: object) -> run.RunResult:
        seen.append(request)
        return run.RunResult(request.paths, request.diff, 0, ())

    monkeypatch.setattr(run, "rewrite", rewrite)
    return seen


def _tables() -> Iterator[tuple[str, bool]]:
    """Tables that the command accepts, and those that it refuses."""
    files = "exclude = []\nextend-exclude = ['old/']\ninclude = ['*.py']\nper-file-ignores = {'a.py' = ['FSDP1']}\n"
    yield FULL + "min-level = 'manual'\nbaseline = 'known.json'\n" + files, True
    yield "[tool.fsdp-migrate]\n", True
    yield "[tool.fsdp-migrate]\ntorch = 2.7\n", True
    yield from (
        (text, False) for text, message in WRONG if text.startswith(f"{HEAD}\n") or "[tool.fsdp-migrate." in text
    )


def test_the_schema_accepts_what_the_command_accepts(tmp_path: Path) -> None:
    validator = Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    validator.check_schema(validator.schema)
    assert tuple(validator.schema["properties"]) == KEYS
    assert set(validator.schema["properties"]["exclude"]["default"]) == SKIPPED_DIRECTORIES
    for text, accepted in _tables():
        (tmp_path / "pyproject.toml").write_text(text)
        table = toml().loads(text)["tool"]["fsdp-migrate"]
        # What a release of torch and a pattern may be is beyond a schema.
        if accepted or not any(word in text for word in ("torch", "'!'")):
            assert validator.is_valid(table) is accepted, text
        if accepted:
            load(tmp_path)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a wrapped model in each of some files; it is the working directory."""
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "old/train.py", "tests/test_train.py", "venv/lib.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(
            "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
        )
    return tmp_path


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ("", ["old/train.py", "tests/test_train.py", "train.py"]),
        ("extend-exclude = ['old/', 'tests']", ["train.py"]),
        ("extend-exclude = ['/train.py']", ["old/train.py", "tests/test_train.py"]),
        ("exclude = ['old']", ["tests/test_train.py", "train.py", "venv/lib.py"]),
        ("include = ['test_*.py', 'old/**']", ["old/train.py", "tests/test_train.py"]),
        ("include = ['*.py']\nextend-exclude = ['/t*']", ["old/train.py"]),
    ],
)
@pytest.mark.parametrize("in_git", [False, True])
def test_files_that_the_project_leaves_out_are_not_read(
    table: str, found: list[str], in_git: bool, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if in_git:
        subprocess.run(["git", "init", "--quiet"], cwd=project, check=True)
    if "old/**" in table:
        found = [name for name in found if name != "old/train.py"] + ["old/train.py"]
    (project / "pyproject.toml").write_text(f"{HEAD}\n{table}\n")
    assert main(["check", "--format", "json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert sorted({finding["path"] for finding in content["findings"]}) == sorted(found)


def test_a_file_that_is_named_is_read_although_it_is_excluded(project: Path) -> None:
    (project / "pyproject.toml").write_text(f"{HEAD}\nextend-exclude = ['old']\ninclude = ['train.py']\n")
    assert main(["check", "tests/test_train.py"]) == 1
    assert main(["check", "old"]) == 0


def test_patterns_are_meant_from_the_directory_of_the_table(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pyproject.toml").write_text(f"{HEAD}\nextend-exclude = ['/old/train.py']\n")
    monkeypatch.chdir(project / "old")
    assert main(["check"]) == 0
    assert "No source files" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["check", "rewrite"])
def test_rules_are_left_out_file_by_file(command: str, project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text(
        f"{HEAD}\nextend-exclude = ['old']\n[tool.fsdp-migrate.per-file-ignores]\n'tests/' = ['fsdp1']\n"
    )
    before = (project / "tests" / "test_train.py").read_text()
    main([command, "."] if command == "check" else [command, "--diff"])
    out = capsys.readouterr().out
    assert "train.py" in out
    assert "test_train.py" not in out
    assert (project / "tests" / "test_train.py").read_text() == before


def test_excluded_checkpoints_are_not_read(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "out").mkdir()
    (project / "out" / "model.pt").write_bytes(b"\x80\x02}q\x00.")
    (project / "pyproject.toml").write_text(f"{HEAD}\nextend-exclude = ['*.py']\n")
    assert main(["check", "--ignore", "FSDP4"]) == 0
    assert "1 checkpoint checked" in capsys.readouterr().out
    (project / "pyproject.toml").write_text(f"{HEAD}\nextend-exclude = ['*.py', 'out/*.pt']\n")
    assert main(["check"]) == 0
    assert "0 checkpoints checked" in capsys.readouterr().out


def test_the_nearest_file_with_the_table_counts(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.fsdp-migrate]\njobs = 7\n")
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert load(tmp_path / "a" / "b") == ProjectSettings(jobs=7)
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.fsdp-migrate]\n")
    assert load(tmp_path / "a" / "b") == ProjectSettings()
    assert load(tmp_path / "a" / "b" / "train.py") == ProjectSettings()


def test_settings_are_defaults_for_options(tmp_path: Path, requests: list[run.Request]) -> None:
    (tmp_path / "pyproject.toml").write_text(FULL)
    path = str(tmp_path)
    assert main(["rewrite", path]) == 0
    assert requests[-1] == run.Request((path,), SHIM, jobs=2, torch=ASKED)
    options = [
        "--to",
        "native",
        "--helpers",
        "needed",
        "--select",
        "FSDP2,fsdp3",
        "--select",
        "FSDP901",
        "--ignore",
        "FSDP1",
        "--torch",
        "2.13.1",
    ]
    options += ["--torch", "2.13.1"]
    assert main(["rewrite", path, *options, "--jobs", "3", "--diff"]) == 0
    chosen = Settings("native", "needed", ("FSDP2", "FSDP3", "FSDP901"), ("FSDP1",), torch=(2, 13), raises_torch=False)
    assert requests[-1] == run.Request((path,), chosen, diff=True, jobs=3, torch=TorchRelease((2, 13), "--torch"))


def test_without_a_file(tmp_path: Path, requests: list[run.Request], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.13.0+cpu")
    for option in (["--no-helpers"], ["--helpers", "never"]):
        assert main(["rewrite", str(tmp_path), *option]) == 0
        wanted = Settings("native", "never", torch=(2, 6))
        assert requests.pop() == run.Request((str(tmp_path),), wanted, torch=TorchRelease((2, 6)))


WRONG = (
    (
        "[tool.fsdp-migrate]\nselects = []\n",
        "has no setting 'selects': the nearest is 'select'",
    ),
    ("[tool.fsdp-migrate]\nMin_Level = 'safe'\n", "has no setting 'Min_Level': the nearest is 'min-level'"),
    ("[tool.fsdp-migrate]\nxyz = 1\n", "has no setting 'xyz': the settings are select, ignore, to,"),
    ("[tool.fsdp-migrate]\nexclude = 'old.py'\n", "exclude = 'old.py': must be a list of patterns as in .gitignore"),
    ("[tool.fsdp-migrate]\ninclude = [1]\n", "include = [1]: must be a list of patterns"),
    ("[tool.fsdp-migrate]\nextend-exclude = ['!']\n", "has the pattern '!', which .gitignore does not allow"),
    ("[tool.fsdp-migrate]\nper-file-ignores = ['a.py']\n", "must be a table of patterns, each with rule ids"),
    ("[tool.fsdp-migrate.per-file-ignores]\n'a.py' = 'FSDP1'\n", "'a.py' = 'FSDP1': must be a list of rule ids"),
    ("[tool.fsdp-migrate]\nselect = 'FSDP1'\n", "select = 'FSDP1': must be a list of rule ids"),
    ("[tool.fsdp-migrate]\nignore = [1]\n", "ignore = [1]: must be a list of rule ids"),
    ("[tool.fsdp-migrate]\nto = 'fsdp2'\n", "to = 'fsdp2': must be one of native, shim"),
    ("[tool.fsdp-migrate]\nhelpers = 1\n", "helpers = 1: must be one of never, needed, always"),
    ("[tool.fsdp-migrate]\ntorch = '2.4'\n", "torch = '2.4': FSDP2 needs torch 2.6 or newer, not 2.4"),
    ("[tool.fsdp-migrate]\ntorch = 'new'\n", "torch = 'new': 'new' is not a release: write it as 2.13"),
    ("[tool.fsdp-migrate]\njobs = true\n", "jobs = True: must be a number from 1"),
    ("[tool.fsdp-migrate]\njobs = 0\n", "jobs = 0: must be a number from 1"),
    ("[tool]\nfsdp-migrate = 1\n", "tool.fsdp-migrate must be a table"),
    ("[tool.fsdp-migrate\n", "could not read "),
)


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_wrong_settings_are_refused(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(SettingsError):
        load(tmp_path)
    assert main(["rewrite", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "pyproject.toml" in err
