"""What a user reads follows one style: plain present-tense technical English, without the habits listed here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("rules/fsdp_rules", "fsdp_migrate", "shim/fsdp_compat", "scripts")
#: Pages that scripts/docs.py makes of rules and tables: their sentences are checked where they are written.
GENERATED = {"rules.md", "coverage.md", "features.md"}
#: What not to write (as a pattern), and what to write instead.
HABITS = {
    r"\btold\b|\btell(s|ing)?\b": "reported, known, says",
    r"\btaken (for|to be|not to)\b": "assumes ... is",
    r"\bwithout a word\b|\bin silence\b": "silently",
    r"\bstands?\b": "is, is at",
    r"\b(lies?|lying)\b": "is, is in",
    r"\bstays?\b": "is kept",
    r"\bgoes\b": "is removed",
    r"\bout of sight\b|\b(is|are) not seen\b": "in code this tool cannot see",
    r"\bof (its|their|his|your|our) own\b(?! \w)": "its own, custom",
    r"\banew\b|\bonce more\b": "again, rewrite, convert",
    r"\bfrom now on\b|\bby now\b|\bin earnest\b": "now, as in production",
    r"(?<!there )\b(is|are) no (?!longer|more|other)\w": "is not a",
    r"\bmend\b": "fix",
    r"\btold apart\b": "distinguish",
    r"\bbehind the (sharding|wrapping)\b": "after",
    r"\bhold(s|ing)? (?=the sharded|FSDP1)": "is, contains",
}
#: Habits that are looked for in what users read alone: docstrings still have them some hundred times.
OF_USERS_ALONE = (
    *(r"\btold\b|", r"\bstands?", r"\b(lies?", r"\bstays?", r"\bgoes", r"\bof (its", r"(?<!there )", r"\bmend"),
)
PATTERNS = {re.compile(pattern, re.IGNORECASE): instead for pattern, instead in HABITS.items()}
#: The longest message of a rule, with eight characters for a value that is filled in.
LONGEST = 110


def _sources() -> Iterator[tuple[str, ast.Module]]:
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def _is_rule(node: ast.AST) -> bool:
    names = [
        target.id
        for line in getattr(node, "body", [])
        if isinstance(line, ast.Assign)
        for target in line.targets
        if isinstance(target, ast.Name)
    ]
    return isinstance(node, ast.ClassDef) and "id" in names


def _text(node: ast.AST) -> str | None:
    """A string as a user meets it, with ``{}`` for each value; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


def _unseen(tree: ast.Module) -> set[int]:
    """Strings that no user reads as a sentence: docstrings of all but rules, examples, parts of others."""
    found: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and not _is_rule(node) and not _is_command(node):
                found.add(id(first.value))
        if isinstance(node, ast.Assign) and any(
            isinstance(target, ast.Name) and target.id in ("before", "after") for target in node.targets
        ):
            found.add(id(node.value))
        if isinstance(node, ast.JoinedStr):
            found.update(id(part) for part in ast.walk(node) if part is not node)
    return found


def _is_command(node: ast.AST) -> bool:
    """Whether click shows the docstring of ``node`` as its help."""
    decorators = getattr(node, "decorator_list", [])
    return any("command" in ast.unparse(entry) or "group" in ast.unparse(entry) for entry in decorators)


def texts() -> Iterator[tuple[str, str]]:
    """Where and what: every text of more than one word that reports, help, errors and hand-written pages show."""
    for path, tree in _sources():
        unseen = _unseen(tree)
        for node in ast.walk(tree):
            text = _text(node)
            if text is not None and " " in text.strip() and id(node) not in unseen:
                yield f"{path}:{getattr(node, 'lineno', 0)}", text
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for page in pages:
        if page.name not in GENERATED:
            prose = re.sub(r"^```.*?^```$|`[^`\n]+`", _blank, page.read_text(encoding="utf-8"), flags=re.S | re.M)
            for number, paragraph in _paragraphs(prose):
                yield f"{page.relative_to(ROOT).as_posix()}:{number}", paragraph


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", "x", found[0])


def _paragraphs(text: str) -> Iterator[tuple[int, str]]:
    number = 1
    for paragraph in text.split("\n\n"):
        yield number, paragraph
        number += paragraph.count("\n") + 2


def docstrings() -> Iterator[tuple[str, str]]:
    """Where and what: the docstrings of all code."""
    for path, tree in _sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield f"{path}:{node.body[0].lineno}", text


def habits(text: str, patterns: Mapping[re.Pattern[str], str] = PATTERNS) -> list[str]:
    """What in ``text`` is not house style, with what to write instead."""
    flat = " ".join(text.split())
    found = ((pattern.search(flat), instead) for pattern, instead in patterns.items())
    return [
        f"{match[0]!r}: write {instead!r} in {flat[max(match.start() - 40, 0) : match.end() + 40]!r}"
        for match, instead in found
        if match is not None
    ]


def messages() -> Iterator[tuple[str, str]]:
    """Where and what: the messages of rules, as far as they are written where the verdict is made."""
    for path, tree in _sources():
        for node in ast.walk(tree):
            given: list[ast.AST] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Diagnosis":
                given = list(node.args[2:3]) if len(node.args) > 2 else []
            elif isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["message"]:
                given = [node.value]
            for part in (entry for value in given for entry in _branches(value)):
                text = _text(part)
                if path.startswith("rules/") and text is not None and " " in text:
                    yield f"{path}:{node.lineno}", text


def _branches(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "sentence":
        yield from node.args
    else:
        yield node


def test_texts_are_in_house_style() -> None:
    found = [f"{where}: {habit}" for where, text in texts() for habit in habits(text)]
    assert not found, "\n" + "\n".join(found)


def test_docstrings_have_none_of_the_rarer_habits() -> None:
    held = {one: instead for one, instead in PATTERNS.items() if not one.pattern.startswith(OF_USERS_ALONE)}
    assert len(held) == len(PATTERNS) - len(OF_USERS_ALONE)
    found = [f"{where}: {habit}" for where, text in docstrings() for habit in habits(text, held)]
    assert not found, "\n" + "\n".join(found)


def test_a_message_is_one_sentence_that_fits_a_line() -> None:
    found = []
    for where, text in messages():
        length = len(text.replace("{}", "x" * 8))
        if length > LONGEST or "; " in text or text.endswith("."):
            found.append(f"{where}: {length} characters: {text}")
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("names that do not fit are skipped without a word", "silently"),
        ("model is taken to be the sharded model", "assumes"),
        ("the argument goes", "is removed"),
        ("5Q is no size", "is not a"),
        ("write the checkpoint anew", "again"),
        ("there is no checkpoint in it", ""),
        ("this hook no longer runs", ""),
    ],
)
def test_a_habit_is_found(text: str, instead: str) -> None:
    assert [instead in habit for habit in habits(text)] == ([True] if instead else [])


def test_every_kind_of_text_is_read() -> None:
    where = {entry.partition(":")[0] for entry, _ in texts()}
    assert {"README.md", "docs/shim.md", "rules/fsdp_rules/loop/no_sync.py", "shim/fsdp_compat/face/fsdp.py"} <= where
    assert len(list(messages())) > 100
