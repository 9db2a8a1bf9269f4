"""What a project requires, against the combinations of versions that are silent or break."""

from __future__ import annotations

from pathlib import Path

import pytest
from packaging.version import Version

from fsdp_migrate.cli import main
from fsdp_migrate.configs.versions import Row, judge, of_optimizer, rows
from fsdp_migrate.tree.requirement_files import is_requirements
from fsdp_migrate.tree.requirements import RELEASES, newest_allowed, required

TRAINER = {"FSDP552"}


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        ("transformers==4.57.1", False),
        ("transformers==5.10.1", True),
        ("transformers>=4.40", True),
        ("transformers", True),
        ("transformers<5", False),
        ("transformers>=5,<5.10", False),
        ("transformers[torch]~=5.10", True),
        ("transformers >=5.0", True),
        ("transformers=5.12.0", True),
        ("transformers=5.12.0=py311_0", True),
        ("transformers>=4.40 \\\n    --hash=sha256:00", True),
        ("transformers>=5; sys_platform == 'win32'", False),
        ("transformers @ git+https://example.org/transformers@v4.29.2", False),
        ("# transformers", False),
        ("transformers-stream-generator", False),
        ("transformers @ git+https://example.org/x", True),
        ("sentence-transformers>=5", False),
    ],
)
def test_requirements_in_every_form(requirement: str, expected: bool) -> None:
    text = f"numpy\n{requirement}\n".encode()
    found = list(judge(text, "requirements.txt", TRAINER))
    assert bool(found) is expected
    assert not list(judge(text, "requirements.txt", ()))
    if expected:
        assert (found[0].rule, found[0].level.value, found[0].line) == ("FSDP571", "manual", 2)


def test_every_row_has_a_thread_and_a_short_message() -> None:
    for row in rows():
        assert row.thread
        assert len(f"this {row.message.format(version='5.10.1')}") <= 110


@pytest.mark.parametrize(
    ("torch", "leaking"),
    [
        ("2.9.1", {"fused": "188174"}),
        ("2.10.0+cu128", {"foreach": "178276", "fused": "188174"}),
        ("2.11.0", {"fused": "188174"}),
        ("2.12.1", {"foreach": "2888", "fused": "188174"}),
        ("2.13.0a0+git12", {"foreach": "2888"}),
    ],
)
def test_what_is_known_of_optimizers_by_release(torch: str, leaking: dict[str, str]) -> None:
    for implementation in ("foreach", "fused", "for-loop"):
        said = [*of_optimizer(implementation, torch)]
        assert len(said) == (implementation in leaking)
        assert all(f"#{leaking[implementation]})" in one for one in said)
        assert all(one.startswith(f"the optimizer runs {implementation} under torch 2.") for one in said)
    pinned = judge(f"torch=={torch}\n".encode(), "requirements.txt", {"FSDP101"})
    threads = {one.advice.rpartition("#")[2].removesuffix(")") for one in pinned}
    assert threads >= set(leaking.values())


@pytest.mark.parametrize(
    ("name", "text", "newest"),
    [
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "^4.40"\n', "4.57.6"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = {version = "~5.8", extras = ["a"]}\n', "5.8.0"),
        ("pyproject.toml", '[project]\ndependencies = [\n  "transformers>=5,<5.10",\n]\n', "5.9.0"),
        ("Pipfile", '[packages]\ntransformers = "*"\n', "5.23.0"),
        ("Pipfile.lock", '{"default": {"transformers": {"hashes": ["a"], "version": "==5.12.1"}}}', "5.12.1"),
        ("poetry.lock", '[[package]]\nname = "transformers"\nversion = "5.11.0"\n', "5.11.0"),
        ("uv.lock", '[[package]]\nname = "transformers"\nversion = "4.50.0"\n', "4.50.0"),
        ("pdm.lock", '[[package]]\nname = "transformers"\nversion = "5.2.0"\n', "5.2.0"),
        ("setup.py", 'setup(install_requires=["numpy", "transformers>=4.3,<5"])\n', "4.57.6"),
        ("setup.cfg", "[options]\ninstall_requires =\n    transformers==5.20.*\n", "5.20"),
        ("environment.yml", "dependencies:\n  - pip:\n    - transformers==5.1.0\n", "5.1.0"),
        ("requirements.txt", "transformers<=4.29.2\nnumpy\n", "4.29.2"),
        ("requirements.txt", "numpy\ntransformers>=4.20,<4.30\n", "4.29"),
        ("requirements.txt", "transformers~=4.31.0\n", "4.31.0"),
        ("requirements.txt", "transformers<4\n", "3"),
        ("requirements.txt", "transformers>=5.30\n", "5.30"),
        ("requirements.txt", "transformers!=4.30\n", "5.23.0"),
        ("requirements.txt", "git+https://github.com/huggingface/transformers.git@v4.28.1\n", "4.28.1"),
        ("setup.py", 'setup(install_requires=["transformers<=4.29.2", "numpy"])\n', "4.29.2"),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntransformers = "<4.30"\n', "4.29"),
    ],
)
def test_forms_of_requirements(name: str, text: str, newest: str | None, tmp_path: Path) -> None:
    (one,) = required(text, name)
    assert (one.package, str(one.newest) if one.newest else None) == ("transformers", newest)
    assert "transformers" in text[one.start : one.end]
    (tmp_path / name).write_text(text)
    (tmp_path / ".git").mkdir()
    assert newest_allowed(tmp_path, "transformers") == (Version(newest) if newest else None)


@pytest.mark.parametrize("text", ["", "transformers = {", "transformers @ x y", "setup(", '"transformers": {}'])
@pytest.mark.parametrize("name", ["pyproject.toml", "setup.py", "uv.lock", "Pipfile.lock", "requirements.txt"])
def test_broken_requirements_say_nothing(name: str, text: str) -> None:
    assert not [one for one in required(text, name) if one.newest is None]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("setup.py", 'setup(install_requires=["transformers>=4.3,<5"])\n'),
        ("requirements.txt", "torch\ntransformers<=4.29.2\nnumpy\n"),
        ("environment.yml", "dependencies:\n  - transformers <4.30\n  - numpy\n"),
    ],
)
def test_a_project_that_allows_no_new_transformers_keeps_its_version(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / ".git").mkdir()
    program = "from transformers import TrainingArguments as T\nT('out', fsdp='full_shard')\n"
    (tmp_path / "train.py").write_text(program)
    (tmp_path / "fsdp.json").write_text('{"fsdp_transformer_layer_cls_to_wrap": ["Block"]}\n')
    assert main(["rewrite", "--allow-dirty", str(tmp_path)]) == 1
    assert "version" not in (tmp_path / "train.py").read_text().replace("where version 2", "")
    assert "version" not in (tmp_path / "fsdp.json").read_text()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("requirements.txt", "accelerate==0.23.0\nnumpy\n"),
        ("pyproject.toml", '[tool.poetry.dependencies]\naccelerate = "~0.27"\n'),
        ("requirements.txt", "numpy\naccelerate<1.6\n"),
    ],
)
def test_a_project_that_allows_no_accelerate_with_fsdp2_keeps_its_version(
    name: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / name).write_text(text)
    plugin = "from accelerate import FullyShardedDataParallelPlugin as P\np = P()\n"
    (tmp_path / "train.py").write_text(plugin)
    launched = "distributed_type: FSDP\nfsdp_config:\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
    (tmp_path / "launch.yaml").write_text(launched)
    assert main(["rewrite", "--allow-dirty", str(tmp_path)]) == 1
    assert capsys.readouterr().out.count("the newest accelerate that the project allows is") == 2
    assert (tmp_path / "launch.yaml").read_text() == launched
    assert "fsdp_version" not in (tmp_path / "train.py").read_text()


@pytest.mark.parametrize("command", ["check", "rewrite"])
def test_what_is_installed_beside_the_tool_changes_nothing(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("from accelerate import FullyShardedDataParallelPlugin as P\np = P()\n")
    (tmp_path / "wrap.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\ndef f(m):\n    return FSDP(m)\n"
    )
    said = []
    for release in ("1.14.0", "2.13.0"):
        monkeypatch.setattr("importlib.metadata.version", lambda name, release=release: release)
        main([command, *(["--diff"] if command == "rewrite" else []), str(tmp_path)])
        said.append(capsys.readouterr())
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "name",
    ["pyproject.toml", "setup.cfg", "requirements.txt", "requirements-dev.txt", "environment.yml", "requirements.in"],
)
def test_names_of_requirement_files(name: str) -> None:
    assert is_requirements(name)
    assert is_requirements(f"a/b/{name}")
    assert not is_requirements(f"my-{name}")


def test_a_folder_of_requirements(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "base.txt").write_text("transformers>=4.40,<5\n")
    (tmp_path / "requirements" / "readme.md").write_text("transformers>=5.10\n")
    assert newest_allowed(tmp_path, "transformers") == Version("4.57.6")
    (tmp_path / "requirements" / "base.txt").write_text("transformers>=5.10\n")
    (tmp_path / "train.py").write_text("from transformers import TrainingArguments as T\nT('out', fsdp='full_shard')\n")
    assert main(["check", str(tmp_path)]) == 1
    assert "requirements/base.txt:1:1: FSDP571 manual" in capsys.readouterr().out.replace("\\", "/")


def test_a_project(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "requirements.txt").write_text("transformers>=4.40\n")
    (tmp_path / "train.py").write_text("print('nothing')\n")
    assert main(["check", str(tmp_path)]) == 0
    (tmp_path / "train.py").write_text("from transformers import TrainingArguments as T\nT('out', fsdp='full_shard')\n")
    capsys.readouterr()
    assert main(["check", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "requirements.txt:1:1: FSDP571 manual" in out
    assert "huggingface/transformers#45640" in out
    assert main(["check", "--ignore", "FSDP5", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("text", "expected"), [("torch==2.3.1\nnumpy\n", True), ("numpy\ntorch<2.5\n", True), ("torch>=2.1\n", False)]
)
def test_a_torch_without_fsdp2_is_to_be_raised(
    text: str, expected: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text(text)
    (tmp_path / "wrap.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\ndef f(m):\n    return FSDP(m)\n"
    )
    main(["check", str(tmp_path)])
    assert ("at most, which has no FSDP2" in capsys.readouterr().out) is expected


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row.package} {row.thread}")
def test_every_row_speaks_of_the_releases_in_its_range_alone(row: Row) -> None:
    known = [Version(release) for release in RELEASES[row.package]]
    for release in known:
        pin = f"{row.package}=={release}"
        for name, text in (
            ("requirements.txt", f"{pin}\n"),
            ("setup.cfg", f"[options]\ninstall_requires =\n    {pin}\n"),
            ("environment.yml", f"dependencies:\n  - {pin}\n"),
        ):
            found = [one.message for one in judge(text.encode(), name, {row.used[0]})]
            assert (f"this {row.message.format(version=release)}" in found) is (release in row.affected)
    assert any(release in row.affected for release in known)


def test_the_combinations_that_break_silently_have_a_row() -> None:
    threads = {
        ("transformers", "huggingface/transformers#45640"),
        ("accelerate", "huggingface/accelerate#4171"),
        ("accelerate", "huggingface/accelerate#3979"),
        ("torch", "pytorch/pytorch#176076"),
        ("torch", "pytorch/pytorch#153077"),
        ("torch", "pytorch/pytorch#191712"),
    }
    assert threads <= {(row.package, row.thread) for row in rows()}
