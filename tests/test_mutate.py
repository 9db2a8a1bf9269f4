"""The changes of ``make mutate`` are changes of conditions, and the tests of a file run first."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import mutate


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one file, whose test holds its first condition alone."""
    monkeypatch.setattr(mutate, "ROOT", tmp_path)
    code, tests = tmp_path / "rules/fsdp_rules/loop", tmp_path / "tests/rules/loop"
    for folder in (code, tests):
        folder.mkdir(parents=True)
    for folder in (code, code.parent):
        (folder / "__init__.py").touch()
    (code / "sizes.py").write_text(
        "def is_large(x):\n    return x > 9 and True\n\n\ndef unheld(x):\n    if x:\n        return 1\n    return 2\n"
    )
    (tests / "test_other.py").write_text("def test_nothing():\n    pass\n")
    (tests / "test_sizes.py").write_text(
        "from fsdp_rules.loop.sizes import is_large\n\n\n"
        "def test_size():\n    assert is_large(10)\n    assert not is_large(9)\n"
    )
    return tmp_path


def test_conditions_are_changed(repository: Path) -> None:
    found = [(one.line, one.text) for one in mutate.mutants(repository / "rules/fsdp_rules/loop/sizes.py")]
    assert sorted(found) == [(2, "(True)"), (2, "(x > 9 or True)"), (2, "(x > 9)"), (2, "(x >= 9)"), (6, "(not x)")]


def test_the_tests_of_a_file_come_first(repository: Path) -> None:
    found = mutate.tests_of("rules/fsdp_rules/loop/sizes.py")
    assert found == ["tests/rules/loop/test_sizes.py", "tests/rules/loop/test_other.py"]


def test_a_change_that_a_test_holds_is_noticed_and_another_survives(repository: Path) -> None:
    file = repository / "rules/fsdp_rules/loop/sizes.py"
    before = file.read_bytes()
    by_text = {one.text: one for one in mutate.mutants(file)}
    assert mutate.noticed(by_text["(x >= 9)"], repository, 60) == "tests/rules/loop/test_sizes.py::test_size"
    assert mutate.noticed(by_text["(not x)"], repository, 60) == ""
    assert file.read_bytes() == before
