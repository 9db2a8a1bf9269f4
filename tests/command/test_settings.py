"""Defaults from pyproject.toml."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.pipeline import run
from fsdp_migrate.tree.settings import ProjectSettings, SettingsError, load
from fsdp_migrate.tree.torch_release import TorchRelease
from fsdp_rules.settings import Settings

SHIM = Settings("shim", "never", ("FSDP1", "FSDP901"), ("FSDP102",), torch=(2, 7))
ASKED = TorchRelease((2, 7), "torch in [tool.fsdp-migrate]")

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
    chosen = Settings("native", "needed", ("FSDP2", "FSDP3", "FSDP901"), ("FSDP1",), torch=(2, 13))
    assert requests[-1] == run.Request((path,), chosen, diff=True, jobs=3, torch=TorchRelease((2, 13), "--torch"))


def test_without_a_file(tmp_path: Path, requests: list[run.Request], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsdp_migrate.tree.torch_release.metadata.version", lambda name: "2.13.0+cpu")
    here = TorchRelease((2, 13), "the torch that is installed here")
    for option in (["--no-helpers"], ["--helpers", "never"]):
        assert main(["rewrite", str(tmp_path), *option]) == 0
        wanted = Settings("native", "never", torch=(2, 13))
        assert requests.pop() == run.Request((str(tmp_path),), wanted, torch=here)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[tool.fsdp-migrate]\nselects = []\n",
            "has no setting 'selects': the settings are select, ignore, to,",
        ),
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
    ],
)
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
