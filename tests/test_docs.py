"""The generated pages under docs/ say what the rules say, and the guide quotes files as they are."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from fsdp_migrate.cli import cli
from fsdp_rules.engine.registry import all_rules
from tests.cli_words import called

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
GUIDES = (ROOT / "docs" / "adding-a-rule.md", ROOT / "CONTRIBUTING.md")


@pytest.fixture
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_script", ROOT / "scripts" / "docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pages_are_fresh(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert script.main(["--check"]) == 0, capsys.readouterr().err


def test_every_rule_has_a_page_with_an_example(script: ModuleType) -> None:
    texts = {path.stem: text for path, text in script.generated().items() if path.parent.name == "rules"}
    for rule in all_rules():
        assert "## Before" in texts[rule.id], rule.id
        assert "## After" in texts[rule.id], rule.id
        assert "## What to test\n\n" in texts[rule.id], rule.id
    # Assumptions are those of messages.
    assert "- this model is not on the meta device" in texts["FSDP101"]
    # The machinery of the room of a rule is read, too.
    assert "- every rank passes the same state" in texts["FSDP309"]


def test_stale_missing_and_left_over_pages_are_named(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(script, "DOCS", tmp_path / "docs")
    assert script.main(["--check"]) == 1
    assert script.main([]) == 0
    assert script.main(["--check"]) == 0
    (tmp_path / "docs" / "rules" / "FSDP101.md").write_text("old\n")
    (tmp_path / "docs" / "rules" / "FSDP777.md").write_text("gone\n")
    capsys.readouterr()
    assert script.main(["--check"]) == 1
    assert re.findall(r"docs/rules/(\w+)\.md", capsys.readouterr().err) == ["FSDP101", "FSDP777"]
    assert script.main([]) == 0
    assert not (tmp_path / "docs" / "rules" / "FSDP777.md").exists()


def test_features_name_tests_that_exist(script: ModuleType) -> None:
    for row in script.features():
        for node in row["tests"]:
            file, _, name = node.partition("::")
            assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), node
        assert row["tests"] or row["says"].startswith("not covered"), row["name"]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_guides_quote_files_as_they_are(guide: Path) -> None:
    quoted = re.findall(r"`([\w/]+\.py)`:\n\n```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)
    assert quoted
    for path, text in quoted:
        assert text == (ROOT / path).read_text(encoding="utf-8"), path


@pytest.mark.parametrize("page", PAGES)
def test_commands_on_pages_have_the_options_that_they_use(page: str) -> None:
    told = re.findall(
        r"^\$ fsdp-migrate (.+?)(?: --(?: .*)?)?$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE
    )
    for line in told:
        command, words, known = called(shlex.split(line, comments=True))
        assert command is not cli or words[0].startswith("-"), line
        assert {word.partition("=")[0] for word in words if word.startswith("-") and word != "-"} <= known, line
    assert told or page != "README.md"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "fixtures/projects/README.md"])
def test_links_of_pages_outside_the_site_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for link in re.findall(r"(?<=\]\()[^)\s]+(?=\))|(?<=<img src=\")[^\"]+(?=\")", text):
        path, _, heading = link.partition("#")
        if link.startswith(("http://", "https://")):
            continue
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), link
        headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE) if heading else []
        names = {re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-") for name in headings}
        assert not heading or heading in names, link


def test_numerics_names_every_rule_that_speaks_of_other_numbers() -> None:
    words = (
        r"numbers (differ|change)|steps differ|last digit|by about 1e-3|of zeros|"
        r"gradient[^.]* in a(nother| different) order"
    )
    page = (ROOT / "docs/numerics.md").read_text(encoding="utf-8")
    speaking = {rule.id for rule in all_rules() if re.search(words, " ".join((rule.__doc__ or "").split()))}
    assert {"FSDP122", "FSDP213", "FSDP228"} <= speaking
    assert {rule for rule in speaking if f"(rules/{rule}.md)" not in page} == set()


@pytest.mark.parametrize("page", PAGES)
def test_rows_of_a_table_have_a_cell_for_each_column(page: str) -> None:
    """A renderer leaves missing cells empty and drops those that are too many, without a warning."""
    text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = {row: re.sub(r"`[^`]*`", "code", row).replace("\\|", "").count("|") for row in table.splitlines()}
        assert len(set(cells.values())) == 1, cells


def test_readme_fits_one_screen() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 42
