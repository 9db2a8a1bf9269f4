"""Both distributions build, and the command runs from its wheel in an environment that has this repository nowhere.

Nothing is fetched: builds run without isolation, and the empty environment gets links to what the wheel requires, from
the site-packages of the tests, and to nothing else: no torch, no numpy, no extra.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import Distribution, distribution
from pathlib import Path

import click
import numpy
import pytest
import yaml
from packaging.requirements import Requirement
from safetensors.numpy import save_file

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = sorted((ROOT / "fsdp_migrate/schemas").iterdir())
LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "__pycache__", "tests", "fixtures", "benchmarks", "dist", "docs")


def run(*command: str | Path, cwd: Path, code: int = 0, given: str = "") -> str:
    done = subprocess.run([*map(str, command)], cwd=cwd, input=given, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == code, f"{command}\n{said}"
    assert "Traceback" not in said, f"{command}\n{said}"
    return said


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with wheel and sdist of both distributions."""
    copy = tmp_path_factory.mktemp("source") / "repository"
    shutil.copytree(ROOT, copy, ignore=LEFT_OUT)
    steps = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]["build"]["steps"]
    (build,) = [step["run"] for step in steps if step.get("name") == "Build and check"]
    assert run("bash", "-ec", f'PATH="{Path(sys.executable).parent}:$PATH"; {build}', cwd=copy).count("PASSED") == 4
    out = tmp_path_factory.mktemp("dist")
    for file in copy.glob("dist/*/*"):
        shutil.move(file, out)
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
    for one in required_by("fsdp-migrate"):
        for name in {file.parts[0] for file in one.files or ()} - {"..", "__pycache__"}:
            if not (packages / name).exists():
                (packages / name).symlink_to(Path(str(one.locate_file(name))))
    return scripts


def required_by(name: str) -> list[Distribution]:
    """What the distribution needs without its extras, and what that needs."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        one = distribution(waiting.pop())
        for line in one.requires or ():
            requirement = Requirement(line)
            needed = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if needed and requirement.name not in found:
                found[requirement.name] = distribution(requirement.name)
                waiting.append(requirement.name)
    return list(found.values())


def test_the_release_is_a_workflow_to_its_host() -> None:
    schema = ("--builtin-schema", "vendor.github-workflows")
    file = ROOT / ".github/workflows/release.yml"
    run(Path(sys.executable).parent / "check-jsonschema", *schema, file, cwd=ROOT)
    jobs = yaml.safe_load(file.read_text())["jobs"]
    # A run that is started by hand publishes nothing.
    by_hand = {name for name, job in jobs.items() if job.get("if") != "github.event_name == 'push'"}
    assert by_hand == {"build", "site"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}


@pytest.mark.parametrize(
    ("name", "required"),
    [
        ("fsdp_migrate", {"click", "libcst", "rich", "safetensors"}),
        ("fsdp_compat", {"packaging", "torch"}),
    ],
)
def test_a_wheel_has_one_name_and_requires_little(name: str, required: set[str], dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob(f"{name}-*.whl"))) as wheel:
        names = wheel.namelist()
        (metadata,) = (wheel.read(entry).decode() for entry in names if entry.endswith("/METADATA"))
    assert {entry.split("/")[0] for entry in names if ".dist-info/" not in entry} == {name}
    assert f"{name}/py.typed" in names
    lines = [line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if line.startswith("Requires-Dist")]
    needed = {Requirement(line).name for line in lines if "extra ==" not in line}
    assert needed >= required
    assert not needed & {"numpy", "torch"} - required
    assert "](docs/" not in metadata
    assert "<img" not in metadata
    schemas = {entry for entry in names if entry.startswith("fsdp_migrate/schemas/")}
    assert schemas == {f"fsdp_migrate/schemas/{file.name}" for file in SCHEMAS if name == "fsdp_migrate"}
    assert "Classifier: Programming Language :: Python :: 3.10" in metadata
    with tarfile.open(next(dist.glob(f"{name}-*.tar.gz"))) as sdist:
        assert any(entry.name.endswith("/pyproject.toml") for entry in sdist)


def test_the_wheel_imports_nothing_by_a_name_that_others_could_have(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("fsdp_migrate-*.whl"))) as wheel:
        sources = {name: wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".py")}
    assert any("from fsdp_migrate.fsdp_rules." in source for source in sources.values())
    assert [name for name, source in sources.items() if re.search(r"(import|from|\") ?fsdp_rules", source)] == []


def commands(group: click.Group, before: Sequence[str] = ()) -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name, command in group.commands.items():
        inner = (*before, name)
        found += commands(command, inner) if isinstance(command, click.Group) else [inner]
    return found


def test_every_command_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    from fsdp_migrate.cli import cli

    command = installed / "fsdp-migrate"
    where = "import fsdp_migrate.fsdp_rules; print(fsdp_migrate.__file__, fsdp_migrate.fsdp_rules.__file__)"
    assert run(installed / "python", "-c", where, cwd=tmp_path).count(str(installed.parent)) == 2
    absent = (
        "from importlib.util import find_spec as s; print(*map(s, ('fsdp_rules', 'fsdp_compat', 'torch', 'numpy')))"
    )
    assert run(installed / "python", "-c", absent, cwd=tmp_path).split() == ["None"] * 4
    for words in commands(cli):
        assert f"Usage: fsdp-migrate {' '.join(words)}" in run(command, *words, "--help", cwd=tmp_path)
    (tmp_path / "train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
    )
    assert "FSDP102" in run(command, "rules", cwd=tmp_path)
    assert "FSDP101" in run(command, "check", cwd=tmp_path, code=1)
    source = (tmp_path / "train.py").read_text()
    assert "-:3:9: FSDP101" in run(command, "check", "-", cwd=tmp_path, code=1, given=source)
    assert "fully_shard(model)" in run(command, "rewrite", "-", cwd=tmp_path, given=source)
    for form in ("json", "sarif", "github", "gitlab", "junit"):
        assert "FSDP101" in run(command, "check", "--format", form, cwd=tmp_path, code=1)
    assert "0 of 1 file moved" in run(command, "status", cwd=tmp_path)
    save_file({"weight": numpy.ones((2, 2), numpy.float32)}, tmp_path / "model.safetensors")
    assert "weight" in run(command, "checkpoint", "inspect", "--all", "model.safetensors", cwd=tmp_path)
    assert "1 checkpoint checked" in run(command, "check", "model.safetensors", cwd=tmp_path)
    # Each of these says which extra it needs.
    convert = ("checkpoint", "convert", "model.safetensors", "copy", "--to", "safetensors")
    assert "convert needs numpy: install fsdp-migrate with" in run(command, *convert, cwd=tmp_path, code=2)
    assert "with its extra [lsp]" in run(command, "lsp", cwd=tmp_path, code=2)
    # What needs a training says so.
    idle = (installed / "python", "-c", "pass")
    assert "no optimizer step" in run(command, "verify", "record", "out", "--", *idle, cwd=tmp_path, code=2)
    run(command, "verify", "compare", "out", "out", cwd=tmp_path, code=2)
    run(command, "preflight", "--", *idle, cwd=tmp_path, code=2)
    assert "1 rewritten" in run(command, "rewrite", "--report", "out.html", cwd=tmp_path)
    assert "fully_shard" in (tmp_path / "out.html").read_text()
    assert "fully_shard(model)" in (tmp_path / "train.py").read_text()
    run(command, "check", cwd=tmp_path)


def test_verify_lends_the_helpers_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    asked = "from fsdp_migrate.verify.runs.launch import _helpers; print(_helpers())"
    folder = Path(run(installed / "python", "-c", asked, cwd=tmp_path).strip())
    assert folder.is_relative_to(installed.parent)
    assert [entry.name for entry in folder.iterdir()] == ["fsdp_compat"]
