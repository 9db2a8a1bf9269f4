"""Two revisions of the tool are compared on a tree that they treat differently, and on one that they do not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(model)\n"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def script() -> object:
    spec = importlib.util.spec_from_file_location("ecosystem", ROOT / "scripts/ecosystem.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_differs_is_printed_and_the_repository_is_left_alone(
    script: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    repository = tmp_path / "theirs"
    repository.mkdir()
    (repository / "a.py").write_text(SOURCE)
    other = tmp_path / "other"
    package = other / "fsdp_migrate"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "__main__.py").write_text(
        "import sys\nif sys.argv[1] == 'check':\n    print('{\"findings\": [], \"errors\": []}')\n"
    )
    assert script.compare(ROOT, ROOT, repository) == 0  # type: ignore[attr-defined]
    assert capsys.readouterr().out == ""
    assert script.compare(ROOT, other, repository) > 5  # type: ignore[attr-defined]
    said = capsys.readouterr().out
    assert "## theirs: findings" in said
    assert "-a.py:3:9: FSDP101 safe: " in said
    assert "-+fully_shard(model)" in said
    assert (repository / "a.py").read_text() == SOURCE


def test_a_revision_that_crashes_is_an_error(script: object, tmp_path: Path) -> None:
    (tmp_path / "fsdp_migrate").mkdir()
    (tmp_path / "fsdp_migrate/__init__.py").write_text("")
    (tmp_path / "fsdp_migrate/__main__.py").write_text("raise KeyError('x')\n")
    with pytest.raises(script.CannotRun, match="check ended with 1"):  # type: ignore[attr-defined]
        script.findings(tmp_path, tmp_path)  # type: ignore[attr-defined]
    with pytest.raises(script.CannotRun, match="git has no nothing"), script.checkout("nothing"):  # type: ignore[attr-defined]
        pass
