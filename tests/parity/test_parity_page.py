"""docs/parity.md is what scripts/parity.py writes of the last run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import pytest

from fsdp_rules.settings import Settings
from tests.parity.harness import files_of, form_of, rewritten_files
from tests.parity.programs import programs

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("parity_script", ROOT / "scripts" / "parity.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_of_the_last_run(script: ModuleType) -> None:
    data = json.loads(script.DATA.read_text(encoding="utf-8"))
    assert script.page(data) == script.PAGE.read_text(encoding="utf-8"), "run python scripts/parity.py --page"


def test_what_differs_is_counted_and_named(script: ModuleType) -> None:
    data = json.loads(script.DATA.read_text(encoding="utf-8"))
    first, second = list(data["programs"])[:2]
    data["programs"][first] |= {"result": "different", "detail": "loss | of step 2"}
    data["programs"][second]["result"] = "left to a human"
    page = script.page(data)
    assert "and 1 differ.**" in page
    assert f"| {first} | different | loss \\| of step 2 |" in page
    assert f"| {second} | left to a human |" in page


def test_no_program_that_was_native_becomes_a_helper(script: ModuleType) -> None:
    data = json.loads(script.DATA.read_text(encoding="utf-8"))["programs"]
    native = [program for program in programs() if data[program.name]["form"] == "native"]
    assert len(native) > 80
    forms = {one.name: form_of(rewritten_files(files_of(one), Settings())) for one in native}
    assert [name for name, form in forms.items() if form != "native"] == []
