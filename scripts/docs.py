"""Writes what comes from the rules: a page under docs/ for each, their index, the table of names, and their words.

With ``--check`` nothing is written; exits 1 if a page is missing, stale or without a rule.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from fsdp_migrate.report.rulebook import Page, explanation, pages
from fsdp_rules.engine.catalogue import NAME, Catalogue
from fsdp_rules.engine.registry import all_rules
from fsdp_rules.fsdp1.api import KINDS, Entry, entries

DOCS = Path(__file__).resolve().parent.parent / "docs"
CATALOGUE = DOCS.parent / "rules" / "fsdp_rules" / "engine" / NAME
FEATURES = DOCS / "features.toml"
CHAPTERS = {
    "1": "Construction",
    "2": "Training loop",
    "3": "State and optimizer",
    "4": "Checkpoints on disk",
    "5": "Configuration files",
    "9": "Beyond reach",
}
VERDICTS = """\
- **exact**: FSDP2 says it in its own words, with the same numbers.
- **emulated**: the same numbers, with a helper of `fsdp_compat` or a few statements.
- **no-op**: FSDP2 always or never does it; there is nothing to say.
- **refused**: reported with advice, never dropped silently."""


def main(arguments: list[str]) -> int:
    """Write or check all pages; the exit code."""
    wanted = generated()
    stale = [path for path, text in wanted.items() if not path.is_file() or path.read_text(encoding="utf-8") != text]
    orphans = sorted(set((DOCS / "rules").glob("*.md")) - wanted.keys())
    if "--check" in arguments:
        for path in [*stale, *orphans]:
            print(f"{path.relative_to(DOCS.parent)} is stale: run make docs", file=sys.stderr)
        return 1 if stale or orphans else 0
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(wanted[path], encoding="utf-8", newline="\n")
    for path in orphans:
        path.unlink()
    print(f"{len(wanted)} pages, {len(stale)} written, {len(orphans)} removed")
    return 0


def generated() -> dict[Path, str]:
    """The text of every generated page by its path."""
    known = pages()
    texts = {DOCS / "rules" / f"{page.id}.md": _text(_rule(page)) for page in known}
    return {
        **texts,
        DOCS / "rules.md": _text(_index(known)),
        DOCS / "coverage.md": _text(_coverage(entries())),
        DOCS / "features.md": _text(_features()),
        CATALOGUE: Catalogue.of(all_rules()).text(),
    }


def features() -> list[dict[str, Any]]:
    """The rows of docs/features.toml: ``list``, ``name``, ``says`` and ``tests``."""
    toml = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    rows: list[dict[str, Any]] = toml.loads(FEATURES.read_text(encoding="utf-8"))["feature"]
    return rows


def _text(lines: Iterator[str]) -> str:
    return "\n".join(lines) + "\n"


def _rule(page: Page) -> Iterator[str]:
    yield from explanation(page)
    names = [entry for entry in entries() if entry.rule == page.id]
    if names:
        yield from ("", "## Names", "")
        yield from (f"- {_spelled(entry)}: {entry.rewriter}" for entry in names)


def _index(known: list[Page]) -> Iterator[str]:
    yield "# Rules"
    yield ""
    yield "`fsdp-migrate rules FSDP102` prints a page on the terminal, and the comment"
    yield "`# fsdp-migrate: ignore[FSDP102]` silences a rule on its line."
    for number, chapter in groupby(known, key=lambda page: page.id.removeprefix("FSDP")[0]):
        yield from ("", f"## {number}xx {CHAPTERS[number]}", "", "| id | name | |", "|---|---|---|")
        for page in chapter:
            yield f"| [{page.id}](rules/{page.id}.md) | {page.name} | {page.first_sentence} |"


def _coverage(listed: tuple[Entry, ...]) -> Iterator[str]:
    yield "# What becomes of every FSDP1 name"
    yield ""
    yield "Every argument, method, field and value of torch's FSDP1 has one verdict for the rewriter"
    yield "(`fsdp-migrate rewrite`) and one for the shim (`fsdp_compat`). A test reads torch's own signatures and"
    yield "fails on a name without a verdict."
    yield ""
    yield VERDICTS
    yield ""
    yield "| | names | exact | emulated | no-op | refused |"
    yield "|---|---|---|---|---|---|"
    for side in ("rewriter", "shim"):
        verdicts = [getattr(entry, side) for entry in listed]
        counts = [verdicts.count(verdict) for verdict in ("exact", "emulated", "no-op", "refused")]
        yield f"| {side} | {len(listed)} | " + " | ".join(map(str, counts)) + " |"
    for (kind, owner), group in groupby(listed, key=lambda entry: (entry.kind, entry.owner)):
        title = f"{KINDS[kind]} of `{owner}`" if owner not in ("fsdp", "wrap") else KINDS[kind]
        yield from ("", f"## {title}", "")
        yield "| FSDP1 | FSDP2 | rewriter | shim | torch | rule | |"
        yield "|---|---|---|---|---|---|---|"
        for entry in group:
            fsdp2 = f"`{entry.fsdp2}`" if _is_code(entry.fsdp2) else entry.fsdp2
            rule = f"[{entry.rule}](rules/{entry.rule}.md)"
            cells = [f"`{entry.name}`", fsdp2, entry.rewriter, entry.shim, entry.torch, rule, entry.note]
            yield f"| {' | '.join(cells)} |"


def _features() -> Iterator[str]:
    yield "# What FSDP2 was asked for, and what shows it"
    yield ""
    yield "Two lists say what people miss when they leave FSDP1: the work list of FSDP2's eager mode (pytorch#120003)"
    yield "and the feature table of Composer's move to FSDP2. Each row is something that `fsdp_compat` does, with the"
    yield "tests that show it; they run with `make test`, and on GPUs with `make test-gpu`."
    for title, group in groupby(features(), key=lambda row: row["list"]):
        yield from ("", f"## The {title}", "", "| feature | in `fsdp_compat` | shown by |", "|---|---|---|")
        for row in group:
            yield f"| {row['name']} | {row['says']} | {'<br>'.join(map(_test, row['tests']))} |"


def _test(node: str) -> str:
    file, _, name = node.partition("::")
    return f"[{name.removeprefix('test_').replace('_', ' ')}](../{file})"


def _is_code(text: str) -> bool:
    return bool(text) and (" " not in text or "(" in text or "=" in text)


def _spelled(entry: Entry) -> str:
    if entry.kind == "argument":
        return f"`{entry.owner}({entry.name}=)`"
    if entry.kind in ("class", "policy"):
        return f"`{entry.name}`"
    return f"`{entry.owner}.{entry.name}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
