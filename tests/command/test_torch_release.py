"""The least torch that a project requires, and how long it allows its lines to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.tree.line_length import line_length
from fsdp_migrate.tree.torch_release import TorchRelease, least_torch

SOURCE = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\ndef build(net):\n    return FSDP(net)\n"
)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("requirements.txt", "numpy\ntorch>=2.7.1  # FSDP2\n", TorchRelease((2, 7), "requirements.txt")),
        ("requirements/train.txt", "torch==2.10.0\n", TorchRelease((2, 10), "requirements/train.txt")),
        ("requirements.txt", "torch==2.4.*\n", TorchRelease((2, 6), "requirements.txt", "2.4")),
        ("requirements.txt", "torchvision>=0.30\ntorch-fidelity>=9\n", None),
        ("requirements.txt", "torch<2.9\n", None),
        ("pyproject.toml", '[project]\ndependencies = ["torch>=2.8,<3"]\n', TorchRelease((2, 8), "pyproject.toml")),
        ("pyproject.toml", '[tool.poetry.dependencies]\ntorch = "^2.9"\n', TorchRelease((2, 9), "pyproject.toml")),
        (
            "pyproject.toml",
            '[tool.poetry.dependencies]\ntorch = {version = "~2.9.1"}\n',
            TorchRelease((2, 9), "pyproject.toml"),
        ),
        ("pyproject.toml", "[project\n", None),
        ("setup.cfg", "[options]\ninstall_requires =\n    torch~=2.8\n", TorchRelease((2, 8), "setup.cfg")),
        ("setup.py", "setup(install_requires=['torch>=2.7'])\n", TorchRelease((2, 7), "setup.py")),
        ("setup.py", "setup(\n", None),
        ("environment.yml", "dependencies:\n  - torch=2.7.1\n", TorchRelease((2, 7), "environment.yml")),
        ("uv.lock", '[[package]]\nname = "torch"\nversion = "2.12.1"\n', TorchRelease((2, 12), "uv.lock")),
        ("requirements.txt", "torch==2.7.0\nnumpy\n", TorchRelease((2, 7), "requirements.txt")),
        ("requirements.txt", "accelerate\ntorch >= 2.8\ntransformers\n", TorchRelease((2, 8), "requirements.txt")),
        ("requirements.txt", "torch==2.9.0+cu126 \\\n  --hash=sha256:00\n", TorchRelease((2, 9), "requirements.txt")),
        ("requirements.txt", "torch>=2.9+cu126\nnumpy\n", TorchRelease((2, 9), "requirements.txt")),
        (
            "requirements.txt",
            "--index-url https://example.org\nhttps://example.org/torch-2.8.0%2Bcu126-cp310-cp310-linux_x86_64.whl\n",
            TorchRelease((2, 8), "requirements.txt"),
        ),
        (
            "requirements.txt",
            "torch==2.2.2; sys_platform == 'darwin'\ntorch==2.8.0; sys_platform != 'darwin'\n",
            TorchRelease((2, 8), "requirements.txt"),
        ),
        ("requirements.txt", "torch<2.4\nnumpy\n", TorchRelease((2, 6), "requirements.txt", "2.3")),
        ("requirements.txt", "torch<=2.1.2\n", TorchRelease((2, 6), "requirements.txt", "2.1")),
        ("requirement.txt", "torch>=2.10\n", TorchRelease((2, 10), "requirement.txt")),
        ("constraints.txt", "torch==2.10.0\nnumpy<3\n", TorchRelease((2, 10), "constraints.txt")),
        (
            "pyproject.toml",
            '[dependency-groups]\ntrain = [{include-group = "dev"}, "torch>=2.9"]\n',
            TorchRelease((2, 9), "pyproject.toml"),
        ),
        (
            "pyproject.toml",
            '[project]\nname = "x"\nkeywords = ["torch"]\n[project.optional-dependencies]\ngpu = ["torch~=2.8.0"]\n',
            TorchRelease((2, 8), "pyproject.toml"),
        ),
        (
            "pyproject.toml",
            '[tool.poetry.group.train.dependencies]\ntorch = [{version = ">=2.8,<3", python = "<3.13"}]\n',
            TorchRelease((2, 8), "pyproject.toml"),
        ),
        (
            "pyproject.toml",
            '[tool.poetry.dependencies.torch]\nversion = "^2.7 || ^3.0"\nsource = "pytorch"\n',
            TorchRelease((2, 7), "pyproject.toml"),
        ),
        ("pyproject.toml", '[tool.pdm.dev-dependencies]\na = ["torch>=2.7"]\n', TorchRelease((2, 7), "pyproject.toml")),
        (
            "pyproject.toml",
            '[tool.uv]\nconstraint-dependencies = ["torch==2.9.1"]\n',
            TorchRelease((2, 9), "pyproject.toml"),
        ),
        ("pyproject.toml", '[build-system]\nrequires = ["torch==2.9.1"]\n', None),
        (
            "setup.cfg",
            "[metadata]\nkeywords = torch\n[options.extras_require]\ntrain =\n  torch>=2.9\n  numpy\n",
            TorchRelease((2, 9), "setup.cfg"),
        ),
        ("setup.py", "R = ['numpy', 'torch>=2.8,<3']\nsetup(install_requires=R)\n", TorchRelease((2, 8), "setup.py")),
        ("setup.py", "setup(keywords=['torch==2.8'], description='torch>=2.9 is best')\n", None),
        (
            "environment.yml",
            "dependencies:\n  - pytorch::pytorch=2.8.*=py3.11_cuda*\n  - numpy\n",
            TorchRelease((2, 8), "environment.yml"),
        ),
        (
            "environment-gpu.yaml",
            "dependencies:\n  - python\n  - pip:\n    - torch==2.9.1\n    - numpy\n",
            TorchRelease((2, 9), "environment-gpu.yaml"),
        ),
        ("Pipfile", '[packages]\ntorch = ">=2.8"\n', TorchRelease((2, 8), "Pipfile")),
        ("pylock.toml", '[[packages]]\nname = "torch"\nversion = "2.9.0"\n', TorchRelease((2, 9), "pylock.toml")),
        (
            "Dockerfile",
            "RUN apt-get update && \\\n  pip install numpy torch==2.8.0\n",
            TorchRelease((2, 8), "Dockerfile"),
        ),
        (
            "docker/Dockerfile",
            "FROM pytorch/pytorch:2.9.1-cuda12.8-cudnn9-devel\n",
            TorchRelease((2, 9), "docker/Dockerfile"),
        ),
    ],
)
def test_what_a_file_requires(
    name: str, text: str, expected: TorchRelease | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "2.11.0+cpu")
    (tmp_path / ".git").mkdir()
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    (tmp_path / "src").mkdir()
    assert least_torch(tmp_path / "src" / "train.py") == (expected or TorchRelease((2, 6)))


def test_files_that_others_include_count(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "deps").mkdir()
    (tmp_path / "requirements.txt").write_text("-r deps/base.txt\n-r requirements.txt\n-r missing.txt\nnumpy\n")
    (tmp_path / "deps" / "base.txt").write_text("torch\n-c pins.txt\n")
    assert least_torch(tmp_path) == TorchRelease()
    (tmp_path / "deps" / "pins.txt").write_text("torch==2.8.0\nnumpy==2.0\n")
    assert least_torch(tmp_path) == TorchRelease((2, 8), "requirements.txt")
    (tmp_path / "deps" / "base.txt").write_text("torch>=2.9\n")
    assert least_torch(tmp_path) == TorchRelease((2, 9), "requirements.txt")


def test_what_windows_writes_is_read(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "requirements.txt").write_text("numpy\ntorch==2.8.0\n", encoding="utf-16")
    assert least_torch(tmp_path) == TorchRelease((2, 8), "requirements.txt")


def test_the_nearest_directory_and_the_least_of_its_files_count(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("torch>=2.12\n")
    near = tmp_path / "app"
    near.mkdir()
    (near / "requirements.txt").write_text("torch>=2.9\n")
    (near / "requirements-cpu.txt").write_text("torch>=2.8\n")
    (near / "uv.lock").write_text('[[package]]\nname = "torch"\nversion = "2.7.1"\n')
    assert least_torch(near) == TorchRelease((2, 8), "requirements-cpu.txt")


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("pyproject.toml", "[tool.ruff]\nline-length = 79\n", 79),
        ("pyproject.toml", "[tool.ruff]\n", 88),
        ("pyproject.toml", "[tool.black]\nline-length = 120\n", 120),
        ("pyproject.toml", "[project]\nname = 'x'\n", None),
        ("ruff.toml", "line-length = 100\n", 100),
        ("setup.cfg", "[flake8]\nmax-line-length = 110\n", 110),
        ("setup.cfg", "[flake8]\nmax-line-length = all\n", None),
        ("tox.ini", "[pycodestyle]\nmax-line-length = 90\n", 90),
        (".editorconfig", "root = true\n\n[*.py]\nmax_line_length = 95\n", 95),
        (".editorconfig", "root = true\n\n[*.js]\nmax_line_length = 95\n", None),
        (".editorconfig", "root = true\n\n[*]\nmax_line_length = off\n", None),
    ],
)
def test_how_long_lines_may_be(name: str, text: str, expected: int | None, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / name).write_text(text)
    (tmp_path / "src").mkdir()
    assert line_length(tmp_path / "src") == expected
    assert line_length(tmp_path / "src" / "train.py") == expected


def test_the_report_names_the_release(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "requirements.txt").write_text("torch>=2.1\n")
    (tmp_path / "train.py").write_text(SOURCE)
    assert main(["rewrite", str(tmp_path), "--diff"]) == 0
    assert "Written for torch 2.6, because requirements.txt allows 2.1, which has no FSDP2." in capsys.readouterr().err
    assert main(["rewrite", str(tmp_path), "--diff", "--torch", "2.7"]) == 0
    assert "Written for torch 2.7 (--torch)." in capsys.readouterr().err
    assert main(["rewrite", str(tmp_path), "--torch", "2.5"]) == 2
    assert "FSDP2 needs torch 2.6 or newer, not 2.5" in capsys.readouterr().err


def test_a_release_that_is_not_known_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(SOURCE)
    for command in ("rewrite", "check"):
        assert main([command, str(tmp_path), "--torch", "9"]) == 2
        assert "torch 9 is not known: the newest known release is 2.13.0" in capsys.readouterr().err
    assert main(["rewrite", str(tmp_path), "--diff", "--torch", "2.99"]) == 0
    said = "Written for torch 2.99 (--torch), which is newer than the newest known release 2.13."
    assert said in capsys.readouterr().err


def test_the_summary_counts_what_a_newer_torch_could_save(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text(
        SAVED := """\
import torch.nn as nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(2, 2)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        return self.used(x)


def build_net():
    model = Net()
    model = FSDP(model)
    return model


def build(model, kwargs):
    parts = [FSDP(one) for one in model.tails]
    other = FSDP(parts[0], ignored_modules=[model.head], **kwargs)
    return FSDP(model)
"""
    )
    assert main(["rewrite", str(tmp_path), "--diff", "--torch", "2.6"]) == 0
    assert "Requiring torch 2.13 could save 1 helper call and 1 assumption: pass --torch 2.13." in (
        capsys.readouterr().err
    )
    (tmp_path / "train.py").write_text(SAVED.replace("self.used(x)", "self.unused(self.used(x))"))
    assert main(["rewrite", str(tmp_path), "--diff", "--torch", "2.13"]) == 0
    assert "could save" not in capsys.readouterr().err
