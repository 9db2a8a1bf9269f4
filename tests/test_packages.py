"""Both distributions build, and the command runs from its wheel in an environment that has this repository nowhere.

Nothing is fetched: builds run without isolation, and a .pth file leads from the empty environment to the site-packages
of the tests for what the wheels require.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parent.parent
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "tests", "fixtures", "benchmarks", "dist", "docs")


def run(*command: str | Path, cwd: Path, code: int = 0) -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == code, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with wheel and sdist of both distributions."""
    copy = tmp_path_factory.mktemp("source") / "repository"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    out = tmp_path_factory.mktemp("dist")
    for source in (copy, copy / "shim"):
        run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--wheel", "--outdir", out, source, cwd=copy)
    return out


@pytest.fixture(scope="module")
def installed(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripts of an environment with the wheel of fsdp-migrate."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, symlinks=True)
    scripts = directory / "bin"
    wheel = next(dist.glob("fsdp_migrate-*.whl"))
    pip = (sys.executable, "-m", "pip", "--python", scripts / "python", "--disable-pip-version-check")
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "requirements.pth").write_text(f"{Path(click.__file__).parents[1]}\n")
    return scripts


def test_the_descriptions_render(dist: Path) -> None:
    files = sorted(dist.iterdir())
    assert len(files) == 4
    assert run(sys.executable, "-m", "twine", "check", "--strict", *files, cwd=dist).count("PASSED") == 4


@pytest.mark.parametrize(
    ("name", "packages"),
    [("fsdp_migrate", {"fsdp_migrate", "fsdp_rules", "fsdp_compat"}), ("fsdp_compat", {"fsdp_compat"})],
)
def test_a_wheel_has_its_packages_alone(name: str, packages: set[str], dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob(f"{name}-*.whl"))) as wheel:
        names = wheel.namelist()
        (metadata,) = (wheel.read(entry).decode() for entry in names if entry.endswith("/METADATA"))
    assert {entry.split("/")[0] for entry in names if ".dist-info/" not in entry} == packages
    assert all(f"{package}/py.typed" in names for package in packages)
    assert "](docs/" not in metadata
    assert "Classifier: Programming Language :: Python :: 3.10" in metadata
    with tarfile.open(next(dist.glob(f"{name}-*.tar.gz"))) as sdist:
        assert any(entry.name.endswith("/pyproject.toml") for entry in sdist)


def commands(group: click.Group, before: Sequence[str] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        inner = (*before, name)
        found += commands(command, inner) if isinstance(command, click.Group) else [inner]
    return found


def test_every_command_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    from fsdp_migrate.cli import cli

    command = installed / "fsdp-migrate"
    where = "import fsdp_migrate, fsdp_rules; print(fsdp_migrate.__file__, fsdp_rules.__file__)"
    assert run(installed / "python", "-c", where, cwd=tmp_path).count(str(installed.parent)) == 2
    for words in commands(cli):
        assert f"Usage: fsdp-migrate {' '.join(words)}" in run(command, *words, "--help", cwd=tmp_path)
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
    )
    assert "FSDP102" in run(command, "rules", cwd=tmp_path)
    assert "FSDP101" in run(command, "check", cwd=tmp_path, code=1)
    assert "1 rewritten" in run(command, "rewrite", "--report", "out.html", cwd=tmp_path)
    assert "fully_shard" in (tmp_path / "out.html").read_text()
    assert "fully_shard(model)" in (tmp_path / "train.py").read_text()
    run(command, "check", cwd=tmp_path)
