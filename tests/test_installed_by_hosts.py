"""The built wheel and this repository, installed as uvx, pre-commit, the action and GitLab's template install it.

Nothing is fetched: a folder has the wheel and, packed again from the environment of the tests, what it requires.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
SOURCE = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef build(m):\n    return FSDP(m)\n"
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "tests", "fixtures", "benchmarks", "dist", "build")
#: What builds the distributions, and pip's own of a new environment.
BUILDING = ("hatchling", "hatch-fancy-pypi-readme", "pip", "setuptools")


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def needed(*names: str) -> Iterator[Distribution]:
    """The distributions, and what they require without extras, as far as they are installed."""
    waiting, seen = list(names), set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        try:
            one = distribution(name)
        except PackageNotFoundError:
            continue
        yield one
        required = map(Requirement, one.requires or ())
        waiting += [each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})]


def packed(one: Distribution, folder: Path) -> None:
    """A wheel of what is installed."""
    tag = re.search(r"^Tag: (.*)$", one.read_text("WHEEL") or "", re.MULTILINE)
    if tag is None:
        return
    name = re.sub(r"[-_.]+", "_", one.metadata["Name"])
    with zipfile.ZipFile(folder / f"{name}-{one.version}-{tag[1]}.whl", "w") as wheel:
        for file in one.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts and Path(str(file.locate())).is_file():
                wheel.write(str(file.locate()), str(file))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This repository as a git repository of one commit."""
    copy = tmp_path_factory.mktemp("source") / "repository"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false")
    for words in (("init", "--quiet"), ("add", "--all"), (*identity, "commit", "--quiet", "--message", "all")):
        run("git", *words, cwd=copy)
    return copy


@pytest.fixture(scope="module")
def index(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", folder, repository, cwd=repository)
    for one in needed("fsdp-migrate", *BUILDING):
        if one.metadata["Name"] != "fsdp-migrate":
            packed(one, folder)
    return folder


@pytest.fixture
def offline(index: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installers find this folder alone, and their own folders are empty."""
    own = tmp_path_factory.mktemp("own")
    places = {"PRE_COMMIT_HOME": own / "pre-commit", "UV_CACHE_DIR": own / "uv", "PIP_CACHE_DIR": own / "pip"}
    found = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": index, "UV_NO_INDEX": "1", "UV_FIND_LINKS": index}
    rest = {"UV_PYTHON_DOWNLOADS": "never", "UV_PYTHON": sys.executable, "PIP_CONFIG_FILE": os.devnull}
    for name, value in {**places, **found, **rest, "UV_TOOL_DIR": own / "tools"}.items():
        monkeypatch.setenv(name, str(value))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(SOURCE)
    run("git", "init", "--quiet", cwd=folder)
    return folder


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None) -> Path:
    """A new environment's interpreter, first on the path, as a job of a host has it."""
    run(sys.executable, "-m", "venv", tmp_path / "environment", cwd=tmp_path)
    scripts = tmp_path / "environment" / "bin"
    monkeypatch.setenv("PATH", f"{scripts}{os.pathsep}{os.environ['PATH']}")
    return scripts / "python"


@pytest.mark.skipif(shutil.which("uvx", path=str(BIN)) is None, reason="uv is not installed beside the tests")
def test_uvx_runs_the_wheel(offline: None, project: Path) -> None:
    assert "train.py:5:12: FSDP101 safe" in run(BIN / "uvx", "fsdp-migrate", "check", ".", cwd=project, code=1)
    run(BIN / "uvx", "fsdp-migrate", "rewrite", "--allow-dirty", ".", cwd=project)
    assert "fully_shard(m)" in (project / "train.py").read_text()


def test_pre_commit_installs_the_repository(offline: None, repository: Path, project: Path) -> None:
    revision = run("git", "rev-parse", "HEAD", cwd=repository).strip()
    config = {"repos": [{"repo": str(repository), "rev": revision, "hooks": [{"id": "fsdp-migrate-check"}]}]}
    (project / ".pre-commit-config.yaml").write_text(yaml.safe_dump(config))
    run("git", "add", "--all", cwd=project)
    said = run(BIN / "pre-commit", "run", "--all-files", cwd=project, code=1)
    assert "train.py:5:12: FSDP101 safe" in said


def test_the_action_installs_the_repository(python: Path, repository: Path, project: Path) -> None:
    steps = yaml.safe_load((repository / "action.yml").read_text())["runs"]["steps"]
    (install,) = [step["run"] for step in steps if step["name"] == "Install fsdp-migrate"]
    run("bash", "-ec", f'ACTION="{repository}"; {install}', cwd=project)
    said = run(python, "-m", "fsdp_migrate", "check", "--format", "github", "--", ".", cwd=project, code=1)
    assert "::warning file=train.py,line=5" in said


def test_the_template_of_gitlab_runs_from_the_repository(python: Path, repository: Path, project: Path) -> None:
    script = yaml.safe_load((repository / "docs/workflows/gitlab-ci.yml").read_text())["fsdp-migrate"]["script"]
    address = "git+https://HOST/OWNER/fsdp-migrate@REVISION"
    lines = "\n".join(script).replace(address, f"git+file://{repository}")
    assert address not in lines
    run("bash", "-ec", lines, cwd=project)
    assert '"check_name": "FSDP101"' in (project / "gl-code-quality-report.json").read_text()
