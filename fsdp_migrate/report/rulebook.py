"""The rules as a reader meets them: a list, a page each, and the check of names that a user typed."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.check.weakening import weakening_rules
from fsdp_migrate.checkpoints.judge.checkpoint_rules import DOCS, NAMES
from fsdp_migrate.report.document import document
from fsdp_migrate.tree.notebooks import CELL_RULE, CELL_RULE_NAME
from fsdp_rules.settings import Settings


class UnknownRule(Exception):
    """No rule has this id; the message names the nearest."""


@dataclass(frozen=True)
class Page:
    """What is told about one rule; ``doc`` is Markdown, ``before`` and ``after`` are sources."""

    id: str
    name: str
    doc: str
    before: str
    after: str
    language: str = "python"

    @property
    def first_sentence(self) -> str:
        """The first sentence, without its full stop."""
        return re.split(r"\.(?:\s|$)", " ".join(self.doc.split()), maxsplit=1)[0]


_CELL = Page(
    CELL_RULE,
    CELL_RULE_NAME,
    "FSDP1 code in a notebook cell that is not plain Python.\n\n"
    "The cell, or an IPython magic in it, is not rewritten. Move its code to a separate cell and run again.",
    "%time model = FSDP(model)\n",
    "",
)


def pages() -> list[Page]:
    """All rules, by id."""
    from fsdp_migrate.configs.versions import DOC, NAME, RULE
    from fsdp_rules.configuration.config_registry import config_rules
    from fsdp_rules.engine.registry import all_rules

    own = [Page(rule.id, rule.name, rule.doc(), rule.before, rule.after) for rule in all_rules()]
    configs = [Page(rule.id, rule.name, rule.doc(), rule.before, rule.after, rule.language) for rule in config_rules()]
    checkpoints = [Page(rule, name, DOCS[rule], "", "") for rule, name in NAMES.items()]
    edits = [Page(rule, name, weakening_rules.DOCS[rule], "", "") for rule, name in weakening_rules.NAMES.items()]
    versions = Page(RULE, NAME, DOC, "", "")
    return sorted([*own, *configs, *checkpoints, *edits, versions, _CELL], key=lambda page: page.id)


def find(wanted: str, known: Sequence[Page]) -> Page:
    """The page of a rule by its id, its number or its name, in any case. Raises :class:`UnknownRule`."""
    for page in known:
        if wanted.upper() in (page.id, page.id.removeprefix("FSDP")) or wanted.lower() == page.name:
            return page
    raise UnknownRule(_no_rule(wanted, known))


def check_names(prefixes: Iterable[str], known: Sequence[Page]) -> None:
    """Raise :class:`UnknownRule` for the first prefix that no rule id starts with."""
    for prefix in prefixes:
        if not any(page.id.startswith(prefix) for page in known):
            raise UnknownRule(_no_rule(prefix, known))


def check_selection(settings: Settings, known: Sequence[Page]) -> None:
    """Raise :class:`UnknownRule` where ``settings`` leave out every rule."""
    if not any(settings.enabled(page.id) for page in known):
        selected = f"--select {','.join(settings.select)}" if settings.select else "all rules"
        raise UnknownRule(f"no rule is left: --ignore {','.join(settings.ignore)} covers {selected}")


def as_json(known: Sequence[Page]) -> str:
    """The pages for programs, whose texts are Markdown."""
    rules = [{**dataclasses.asdict(page), "summary": page.first_sentence} for page in known]
    return document("rules", {"rules": [{**rule, "doc": inspect.cleandoc(str(rule["doc"]))} for rule in rules]})


def listing(known: Sequence[Page]) -> Iterator[str]:
    """One line per rule."""
    width = max(len(page.name) for page in known)
    for page in known:
        yield f"{page.id}  {page.name:<{width}}  {page.first_sentence}"


def explanation(page: Page) -> Iterator[str]:
    """The whole page, as Markdown."""
    # A configuration rule is found by its module, which needs more than a list of rules does.
    from fsdp_migrate.report.what_to_test import what_to_test

    summary, _, details = inspect.cleandoc(page.doc).partition("\n\n")
    yield from (f"# {page.id} {page.name}", "", summary)
    for title, source in (("Before", page.before), ("After", page.after)):
        if source.strip():
            yield from ("", f"## {title}", "", f"```{page.language}", source.strip("\n"), "```")
    if details:
        yield from ("", "## Details", "", details)
    yield from ("", "## What to test", "", what_to_test(page.id))


def _no_rule(wanted: str, known: Sequence[Page]) -> str:
    near = difflib.get_close_matches(wanted.upper(), [page.id for page in known], n=3, cutoff=0.5)
    names = difflib.get_close_matches(wanted.lower(), [page.name for page in known], n=2, cutoff=0.5)
    found = near + names
    verb = "is" if len(found) == 1 else "are"
    hint = f"; the nearest {verb} {', '.join(found)}" if found else "; fsdp-migrate rules lists them"
    return f"there is no rule {wanted}{hint}"
