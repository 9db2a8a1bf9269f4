"""What an edit weakens: the facts of two versions of a tree against each other."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fsdp_migrate.check.weakening.proof_facts import Facts, Number, Text

#: How many of its lines a file shares with the one that it was, under another name.
_SAME_FILE = 0.5
_EQUAL = re.compile(r"==|(?i:close|equal)")


@dataclass(frozen=True)
class Weakened:
    """One edit: the rule, the path and line where it is now, and what was done."""

    rule: str
    path: str
    line: int
    message: str


def weakened(before: Mapping[str, Facts], after: Mapping[str, Facts]) -> list[Weakened]:
    """The edits between two versions of a tree, each with the facts of its files by path, in the order of paths."""
    renamed = _renamed(before, after)
    pairs = {path: (before.get(renamed.get(path, path), Facts()), facts) for path, facts in after.items()}
    found: list[Weakened] = []
    for path, (old, new) in pairs.items():
        found += _of_file(path, old, new)
    found += _asserts(before, after, renamed)
    found += _tests(before, after)
    return sorted(found, key=lambda one: (one.path, one.line, one.rule, one.message))


def _renamed(before: Mapping[str, Facts], after: Mapping[str, Facts]) -> dict[str, str]:
    """The old path of each file that has another now."""
    gone = [path for path in before if path not in after]
    found: dict[str, str] = {}
    for path in after:
        if path not in before:
            shared = {old: _share(before[old], after[path]) for old in gone}
            best = max(shared, key=lambda old: shared[old], default="")
            if best and shared[best] >= _SAME_FILE:
                found[path] = best
    return found


def _share(one: Facts, other: Facts) -> float:
    lines, others = Counter(filter(None, one.lines)), Counter(filter(None, other.lines))
    return (lines & others).total() / max(lines.total(), others.total(), 1)


def _of_file(path: str, old: Facts, new: Facts) -> Iterator[Weakened]:
    for rule, said, was, now in (
        ("FSDP602", "states no longer have to match", old.lax, new.lax),
        ("FSDP603", "the loop ends early", old.limits, new.limits),
        ("FSDP605", "finding silenced", old.ignores, new.ignores),
        ("FSDP606", "only known at run time", old.hidden, new.hidden),
        ("FSDP607", "tests left out", old.skips, new.skips),
    ):
        for one in _added(was, now):
            yield Weakened(rule, path, one.line, f"{said}: {_short(one.text)}")
    yield from _numbers(path, old, new)
    yield from _todos(path, old, new)


def _todos(path: str, old: Facts, new: Facts) -> Iterator[Weakened]:
    """TODO comments that are gone while the line of code below them is as it was."""
    lines, known = [_code(line) for line in new.lines], Counter(map(_code, old.lines))
    kept = Counter((todo.text, _code(below)) for todo, below in new.todos)
    for todo, below in old.todos:
        code = _code(below)
        if kept[todo.text, code]:
            kept[todo.text, code] -= 1
        elif code and lines.count(code) >= known[code]:
            line = lines.index(code) + 1
            yield todo_removed(path, line, below)


def todo_removed(path: str, line: int, code: str) -> Weakened:
    """The comment of a rewrite is gone, and ``code`` below it is as it was."""
    return Weakened("FSDP606", path, line, f"TODO removed, but its statement is unchanged: {_short(code)}")


def _code(line: str) -> str:
    """A line without spaces, and without the comment at its end."""
    return re.sub(r"\s", "", re.sub(r"(^|\s)#.*$", "", line))


def _added(old: Iterable[Text], new: Sequence[Text]) -> Iterator[Text]:
    """Those of ``new`` that ``old`` has not, as often as it has them more."""
    known = Counter(one.text for one in old)
    for one in new:
        if known[one.text]:
            known[one.text] -= 1
        else:
            yield one


def _numbers(path: str, old: Facts, new: Facts) -> Iterator[Weakened]:
    for kind, what in sorted({(one.kind, one.what) for one in (*old.numbers, *new.numbers)}):
        was, now = _changed(_named(old.numbers, kind, what), _named(new.numbers, kind, what))
        for place in range(max(len(was), len(now))):
            first = was[place] if place < len(was) else None
            last = now[place] if place < len(now) else None
            line = last.line if last else new.scopes.get(first.scope, 1) if first else 1
            values = f"{what}: {_plain(first)} before, {_plain(last)} now"
            if kind == "seed" and (last is None or first is not None or _is_known(last.scope, old)):
                yield Weakened("FSDP604", path, line, f"another seed, {values}")
            elif first is not None and last is not None and kind == "steps" and last.value < first.value:
                yield Weakened("FSDP603", path, line, f"fewer steps, {values}")
            elif first is not None and last is not None and kind == "tolerance" and last.value > first.value:
                yield Weakened("FSDP608", path, line, f"wider tolerance, {values}")
            elif first is None and last is not None and kind != "seed" and _is_known(last.scope, old):
                rule, said = ("FSDP603", "a new limit") if kind == "steps" else ("FSDP608", "a new tolerance")
                yield Weakened(rule, path, line, f"{said}, {values}")


def _is_known(scope: str, old: Facts) -> bool:
    """Whether a function was there before, so that what is new in it changes what it did."""
    return scope in old.scopes or (not scope and bool(old.lines))


def _named(numbers: Iterable[Number], kind: str, what: str) -> list[Number]:
    return [one for one in numbers if (one.kind, one.what) == (kind, what)]


def _changed(old: Sequence[Number], new: Sequence[Number]) -> tuple[list[Number], list[Number]]:
    """The numbers of each that the other has not, in their order."""
    was, now = Counter(one.value for one in old), Counter(one.value for one in new)
    return _rest(old, was - now), _rest(new, now - was)


def _rest(numbers: Iterable[Number], left: Counter[float]) -> list[Number]:
    found = []
    for one in numbers:
        if left[one.value]:
            left[one.value] -= 1
            found.append(one)
    return found


def _asserts(before: Mapping[str, Facts], after: Mapping[str, Facts], renamed: Mapping[str, str]) -> Iterator[Weakened]:
    """Asserts that neither their function nor any other place has now, whatever they are about."""
    now = {renamed.get(path, path): (path, facts) for path, facts in after.items()}
    gone = {
        path: [*_added(now[path][1].asserts if path in now else [], facts.asserts)] for path, facts in before.items()
    }
    come = [one for path, facts in after.items() for one in _added(_old(before, renamed, path), facts.asserts)]
    elsewhere = Counter(one.text for one in come)
    for path, asserts in gone.items():
        where, facts = now.get(path, (path, Facts()))
        fresh = Counter((one.scope, _compares(one)) for one in _added(before[path].asserts, facts.asserts))
        for one in asserts:
            if elsewhere[one.text]:
                # Moved to another file.
                elsewhere[one.text] -= 1
            elif fresh[one.scope, True]:
                # Written in another way.
                fresh[one.scope, True] -= 1
            elif fresh[one.scope, False] and not _compares(one):
                fresh[one.scope, False] -= 1
            else:
                line = facts.scopes.get(one.scope, 1)
                yield Weakened("FSDP601", where, line, f"deleted, or can no longer fail: {_short(one.text)}")


def _compares(one: Text) -> bool:
    """Whether an assert compares values: another one in its place that does not is weaker."""
    return bool(_EQUAL.search(one.text))


def _old(before: Mapping[str, Facts], renamed: Mapping[str, str], path: str) -> list[Text]:
    known = before.get(renamed.get(path, path))
    return known.asserts if known else []


def _tests(before: Mapping[str, Facts], after: Mapping[str, Facts]) -> Iterator[Weakened]:
    """Tests of which neither the name nor the asserts are anywhere now."""
    names = Counter(test.text for facts in after.values() for test in facts.tests)
    held = {test: set(asserts) for facts in after.values() for test, asserts in _by_test(facts).items()}
    for path, facts in before.items():
        asserts = _by_test(facts)
        for test in facts.tests:
            own = set(asserts[test.scope])
            if names[test.text]:
                names[test.text] -= 1
            elif not own or not any(own & others for others in held.values()):
                yield Weakened("FSDP607", path, 1, f"test deleted, or no longer found by its name: {test.text}")


def _by_test(facts: Facts) -> dict[str, list[str]]:
    """The texts of the asserts of each test."""
    return {test.scope: [one.text for one in facts.asserts if one.scope == test.scope] for test in facts.tests}


def _plain(number: Number | None) -> str:
    return "none" if number is None else f"{number.value:g}"


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else f"{flat[:57]}..."
