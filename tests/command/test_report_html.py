"""The page, without a browser: what is in it, that it loads nothing, and that quoted code stays text."""

from __future__ import annotations

import base64
import hashlib
import re
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fsdp_migrate.cli import main
from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.report.rewrite import html_report as html
from fsdp_migrate.report.rewrite.colours import coloured
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Failed, Skipped, Unchanged

HOSTILE = (
    '</script><script>alert(1)</script><img src=x onerror="alert(1)">{{ 7 * 7 }}{% raw %}&lt;\x00\x1b[31m\u202e\udcff'
)
VOID = {"meta", "input", "img", "link", "br", "hr"}


class Tree(HTMLParser):
    """Elements with their attributes and text; an element that is not closed in order is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[int] = []
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes), []))
        if tag not in VOID:
            self.open.append(len(self.elements) - 1)

    def handle_endtag(self, tag: str) -> None:
        assert self.elements[self.open.pop()][0] == tag

    def handle_data(self, data: str) -> None:
        for index in self.open:
            self.elements[index][2].append(data)

    def texts(self, tag: str, **wanted: str) -> list[str]:
        return ["".join(text) for name, has, text in self.elements if name == tag and wanted.items() <= has.items()]

    def attributes(self, name: str) -> list[str]:
        return [has[name] or "" for _, has, _ in self.elements if name in has]


def finding(level: Level, line: int, message: str = "why", rule: str = "FSDP101") -> Finding:
    return Finding(rule, "constructor-call", "a.py", line, 0, line, 4, level, message, "so")


def outcome(before: str, after: str, *findings: Finding, path: str = "a.py") -> FileOutcome:
    old, new = (text.encode("utf-8", errors="surrogateescape") for text in (before, after))
    return FileOutcome(path, Path("/", "a.py"), old, Unchanged(findings) if old == new else Changed(new, findings))


def page(*files: FileOutcome, diff: bool = True) -> Tree:
    return Tree(html.render(RunResult(("src",), diff, 10, files)))


def test_what_changed_and_why() -> None:
    findings = (
        finding(Level.REVIEW, 1, "if it holds"),
        finding(Level.SAFE, 1, "same"),
        finding(Level.MANUAL, 30, "no"),
    )
    tail = "x = 1\n" * 28 + "FSDP.by_hand()\n"
    tree = page(outcome(f"FSDP(m)\n{tail}", f"fully_shard(m)\n{tail}", *findings))
    (summary,) = tree.texts("section", id="summary")
    assert [line for line in summary.split() if line.isdigit()] == ["1", "1", "1", "0"]
    (assumptions,) = tree.texts("section", id="assumptions")
    assert "if it holds" in assumptions
    assert "a.py:1" in assumptions
    assert "same" not in assumptions
    (to_do,) = tree.texts("section", id="next")
    assert "Change by hand the 1 place" in to_do
    assert "Train the first steps" in to_do
    excerpt, changed = tree.texts("article")
    assert changed.index("if it holds") < changed.index("same") < changed.index("-FSDP(m)")
    assert "+fully_shard(m)" in changed
    assert "The code, unchanged" in excerpt
    assert " FSDP.by_hand()" in excerpt
    assert tree.texts("details", **{"class": "whole"}) != []


def test_every_link_leads_somewhere_on_the_page() -> None:
    tree = page(outcome("a\n", "b\n", finding(Level.REVIEW, 1), finding(Level.MANUAL, 1, rule="FSDP202")))
    ids = tree.attributes("id")
    assert len(ids) == len(set(ids))
    links = tree.attributes("href")
    assert "#rule-FSDP202" in links
    assert all(link.startswith("#") and link[1:] in ids for link in links)


def test_a_rule_is_explained_in_its_own_words() -> None:
    tree = page(outcome("a\n", "b\n", finding(Level.SAFE, 1, rule="FSDP301")))
    (explained,) = tree.texts("details", id="rule-FSDP301")
    assert "FSDP2 has no such mode" in explained
    assert "resume in new processes" in explained
    assert "FULL_STATE_DICT" in explained
    assert any(tag == "table" for tag, _, _ in tree.elements)


def test_nothing_is_loaded_and_only_the_own_script_may_run() -> None:
    text = html.render(RunResult((HOSTILE,), True, 1, (hostile(),)))
    tree = Tree(text)
    assert {tag for tag, _, _ in tree.elements} & {"img", "link", "iframe", "object", "base", "audio", "video"} == set()
    for name in ("src", "srcset", "action", "data", "style", "poster"):
        assert tree.attributes(name) == [], name
    assert not [name for _, has, _ in tree.elements for name in has if name.startswith("on")]
    (style,) = tree.texts("style")
    assert not re.search(r"url\(|@import", style)
    (script,) = tree.texts("script")
    (policy,) = [has["content"] for _, has, _ in tree.elements if "http-equiv" in has]
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for name, content in (("style-src", style), ("script-src", script)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{name} 'sha256-{digest}'" in policy


def hostile() -> FileOutcome:
    found = (finding(Level.REVIEW, 1, HOSTILE, rule="FSDP101"), finding(Level.MANUAL, 2, HOSTILE))
    return outcome(f"x = '{HOSTILE}'\nz\n", f"y = '{HOSTILE}'\nz\n", *found, path=HOSTILE)


def test_quoted_text_is_text() -> None:
    failed = FileOutcome(HOSTILE, Path("/b.py"), b"", Failed(HOSTILE))
    skipped = FileOutcome(HOSTILE, Path("/c.py"), b"", Skipped(HOSTILE))
    text = html.render(RunResult((HOSTILE,), True, 1, (hostile(), failed, skipped)))
    assert "<script>alert" not in text
    assert "<img" not in text
    assert all(char.isprintable() or char == "\n" for char in text)
    tree = Tree(text)
    shown = HOSTILE.encode("unicode_escape").decode("ascii").replace("\\\\", "\\")
    assert tree.texts("h3", **{"class": "path"}) == [shown]
    assert tree.texts("code").count(shown) == 2
    (advice,) = set(tree.texts("p", **{"class": "advice"}))
    assert advice == "What to do: so"
    assert f"-x = '{shown[: shown.index('udcff') - 1]}" in tree.texts("del")[0]


def test_a_long_hunk_is_cut_and_the_whole_diff_is_not() -> None:
    lines = html.LONGEST_HUNK + 50
    tree = page(outcome("a\n" * lines, "b\n" * lines, finding(Level.REVIEW, 1)))
    (shown,) = tree.texts("article")
    assert shown.count("-a") == html.LONGEST_HUNK
    assert f"… {2 * lines - html.LONGEST_HUNK} more lines" in shown
    (whole,) = tree.texts("details", **{"class": "whole"})
    assert whole.count("-a") == whole.count("+b") == lines


def test_nothing_to_tell() -> None:
    tree = page()
    (header,) = tree.texts("header")
    assert "was asked to move" in header
    assert "10 files read, no FSDP1 code found. Nothing to do." in header
    assert tree.texts("form") == []


def test_a_run_of_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nmodel = FSDP(net)\nKINDS = [FSDP]\n"
    )
    assert main(["rewrite", "train.py", "--report", "report.html"]) == 1
    tree = Tree(Path("report.html").read_text(encoding="utf-8"))
    assert "-model = FSDP(net)" in "".join(tree.texts("del"))
    assert "# TODO(fsdp-migrate FSDP901)" in "".join(tree.texts("ins"))
    assert any("has moved this program" in text for text in tree.texts("p"))


def test_the_page_says_which_run_it_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrap = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\nm = FSDP(m)\n"
    (tmp_path / "a.py").write_text(wrap)
    assert main(["rewrite", "--diff", "--report", "out put.html", "a.py"]) == 0
    (about,) = Tree((tmp_path / "out put.html").read_text()).texts("ul", **{"class": "about"})
    assert f"Project {tmp_path.name}" in about
    assert "Command fsdp-migrate rewrite --diff --report 'out put.html' a.py" in about
    assert re.search(r"Report \d{4}-\d\d-\d\d", about)
    assert "Commit" not in about


def test_lines_have_their_numbers_and_severity_comes_first() -> None:
    findings = (finding(Level.SAFE, 1, "same"), finding(Level.MANUAL, 30, "no"), finding(Level.MANUAL, 30, "no"))
    tail = "x = 1\n" * 28 + "FSDP.by_hand()\n"
    tree = page(outcome(f"FSDP(m)\n{tail}", f"new()\nfully_shard(m)\n{tail}", *findings))
    first, second = tree.texts("article")
    assert "no" in first
    assert "same" in second
    numbers = tree.texts("span", **{"class": "n"})
    assert numbers[2:8] == ["1", "", "", "1\n2", "2\n3\n4", "3\n4\n5"]
    (to_do,) = tree.texts("section", id="by-hand")
    assert to_do.count("FSDP101: no") == 1


@pytest.mark.parametrize(
    "code", ['+def f():  # why\n \n-    return \'a<b\' + """x\n+y"""', "+'unclosed\n-", " \x00\\", "+" * 30_000]
)
def test_colours_change_no_character(code: str) -> None:
    shown = str(coloured(code))
    assert unescape(re.sub(r"</?i[^>]*>", "", shown)) == code
    assert "<b" not in shown
