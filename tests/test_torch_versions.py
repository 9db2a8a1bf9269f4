"""The script behind `make matrix`: what it reads from pytest's report and from the shim's conditions, and its page."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent

REPORT = """<testsuites><testsuite>
<testcase classname="tests.shim.test_a" name="test_good"/>
<testcase classname="tests.shim.test_a" name="test_bad[1]">
<failure message="WorkerError: 1 of 2 failed&#10;--- rank 0&#10;ValueError: 3 is wrong">long</failure></testcase>
<testcase classname="tests.shim.test_b" name="test_setup"><error message="no such fixture">long</error></testcase>
<testcase classname="tests.shim.test_b" name="test_new"><skipped message="needs torch 2.9: hooks"/></testcase>
<testcase classname="" name="tests.shim.test_c"><error message="collection failure">E   ImportError: no torch.new
</error></testcase>
</testsuite></testsuites>
"""

CONDITIONS = """# Older ones
# do not.
HAS_A = Version("2.7") <= TORCH

# Newer ones do.
HAS_B = Version("2.13") <= TORCH
"""


OLD = (("test_a", "old"), ("test_b", "old"))


@pytest.fixture
def script() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("matrix_script", ROOT / "scripts" / "matrix.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Its dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_a_report_is_read(script: ModuleType, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    portion = script.read_report(report, "0a1b2c3d4", "2026-01-02")
    assert portion.passed == {"test_a": 1, "test_b": 0, "test_c": 0}
    assert portion.skipped == (("test_b", "needs torch 2.9: hooks"),)
    assert portion.failed == (
        ("test_a", "test_bad[1]", "ValueError: 3 is wrong"),
        ("test_b", "test_setup", "no such fixture"),
        ("test_c", "tests.shim.test_c", "ImportError: no torch.new"),
    )


def test_the_page_says_what_differs_where(script: ModuleType) -> None:
    portion = script.Portion(
        "0a1b2c3d4", "2026-01-02", {"test_a": 5, "test_b": 0}, (("test_a", "test_bad", "ValueError: 3"),), OLD
    )
    page = script.page([script.Result("2.8", "2.8.0", "3.11.7", (portion,))], 41, script.gates(CONDITIONS))
    assert "| 2.8.0 | 3.11.7 | 2 of 41 | 5 | 1 | 2 | 0a1b2c3d4 of 2026-01-02 (2) |" in page
    assert "| 2.7 | Older ones do not. | `HAS_A` |" in page
    assert "On 1 releases 5 tests passed and 1 failed; none of these releases ran all 41 test files." in page
    assert "- torch 2.6: not run" in page
    assert "- torch 2.8 on Python 3.12, which the test machine did not have: Python 3.11 was used instead" in page
    assert "- failed: `test_a::test_bad`: ValueError: 3" in page
    assert "- 2 skipped: old" in page


def test_the_page_says_how_many_releases_ran_every_file(script: ModuleType) -> None:
    results = [
        script.Result(version, f"{version}.0", python, (script.Portion("0a1b2c3d4", "2026-01-02", files, (), ()),))
        for version, python, files in (("2.8", "3.12.1", {"test_a": 2, "test_b": 1}), ("2.6", "3.10.13", {"test_a": 2}))
    ]
    assert "On 2 releases 5 tests passed and 0 failed; 1 of these releases ran all 2" in script.page(results, 2, [])
    assert "On 1 releases 3 tests passed and 0 failed; all of these releases ran" in script.page(results[:1], 2, [])


@pytest.fixture
def recorded(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with results of 2.8 and 2.10 of its own."""
    portion = script.Portion(
        "0a1b2c3d4", "2026-01-02", {"test_a": 5, "test_b": 3}, (("test_a", "test_bad", "ValueError: 3"),), OLD
    )
    monkeypatch.setattr(script, "DATA", tmp_path / "data.json")
    script.DATA.write_text('{"results": [], "files": 0}')
    script.record(script.Result("2.10", "2.10.0", "3.11.7", (portion,)))
    script.record(script.Result("2.8", "2.8.0", "3.12.1", (portion,)))
    return script


def test_files_that_run_again_replace_what_was_recorded_of_them(recorded: ModuleType) -> None:
    again = recorded.Portion("5e6f70819", "2026-01-03", {"test_a": 6}, (), ())
    recorded.record(recorded.Result("2.8", "2.8.0", "3.12.1", (again,)))
    (older, newer), _ = recorded.read_results()
    assert (older.version, newer.version) == ("2.8", "2.10")
    assert (older.files, older.passed, older.failed, older.skipped) == (2, 9, [], ["old"])
    assert [(portion.commit, list(portion.passed)) for portion in older.portions] == [
        ("0a1b2c3d4", ["test_b"]),
        ("5e6f70819", ["test_a"]),
    ]
    assert (newer.passed, len(newer.failed), len(newer.portions)) == (8, 1, 1)


def test_another_patch_release_or_python_leaves_nothing_of_the_earlier_result(recorded: ModuleType) -> None:
    again = recorded.Portion("5e6f70819", "2026-01-03", {"test_a": 6}, (), ())
    recorded.record(recorded.Result("2.8", "2.8.1", "3.12.1", (again,)))
    recorded.record(recorded.Result("2.10", "2.10.0", "3.13.0", (again,)))
    assert [(result.files, result.passed) for result in recorded.read_results()[0]] == [(1, 6), (1, 6)]


@pytest.mark.parametrize(
    ("test", "whole"),
    [
        ("tests/shim", True),
        ("tests/shim/test_face.py", True),
        ("tests/shim/test_face.py::test_a", False),
        ("tests/rules", False),
        ("tests/shim/training.py", False),
    ],
)
def test_only_whole_files_of_the_shim_are_recorded(script: ModuleType, test: str, whole: bool) -> None:
    assert script.whole_files(test) is whole


def test_every_condition_of_the_shim_has_a_reason(script: ModuleType) -> None:
    source = script.GATES.read_text()
    found = script.gates(source)
    assert len(found) == source.count("<= TORCH")
    assert all(gate.since > Version("2.6") and len(gate.reason) > 20 for gate in found)


def test_versions_are_named_by_two_numbers(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        script.main(["2.8.0"])
    assert "2.8.0: a version is named by its first two numbers" in capsys.readouterr().err


def test_the_page_is_of_the_last_results(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = script.PAGE.read_text(encoding="utf-8")
    monkeypatch.setattr(script, "PAGE", tmp_path / "page.md")
    assert script.main(["--page"]) == 0
    assert script.PAGE.read_text(encoding="utf-8") == committed, "run python scripts/matrix.py --page"
