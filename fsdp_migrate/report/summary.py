"""The counts and the closing paragraph that all reports share."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections import Counter
from collections.abc import Sequence

from fsdp_migrate.pipeline.hunks import TODO
from fsdp_migrate.pipeline.outcome import FileOutcome, RunResult
from fsdp_migrate.tree.git import repository
from fsdp_migrate.tree.torch_release import TorchRelease
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed

#: The path that means standard input.
STDIN = "-"
#: What the advice of a finding says a newer torch makes needless: a helper, or an assumption.
_NEWER_HELPER = re.compile(r"the helper, (remove that part, or )?require torch (?P<major>\d+)\.(?P<minor>\d+)$")
_NEWER = re.compile(r"\bif your model has any, pass --torch (?P<major>\d+)\.(?P<minor>\d+)\b")
_COMMAND = re.compile(r"\A *::|##(?=\[)")
_UNUSUAL = re.compile(r"[^ -~]")


def by_rule(findings: list[Finding]) -> dict[str, int]:
    """How many findings each rule has, by rule id."""
    return dict(sorted(Counter(finding.rule for finding in findings).items()))


def places(findings: list[Finding]) -> int:
    """At how many places ``findings`` are: the same sentence about one line is one comment, and one place."""
    return len({(each.path, each.line, each.rule, each.message) for each in findings})


def by_level(findings: list[Finding]) -> dict[str, int]:
    """How many findings each level has; every level is named."""
    counts = Counter(finding.level for finding in findings)
    return {level.value: counts[level] for level in Level}


def as_json(finding: Finding) -> dict[str, object]:
    """A finding for programs: lines and columns count from 1, and the column of its end is the one after it."""
    known = dataclasses.asdict(finding)
    if finding.ran is None:
        del known["ran"]
    if not finding.edit:
        del known["edit"]
    return {
        **known,
        "column": finding.column + 1,
        "end_column": finding.end_column + 1,
    }


def added_todos(file: FileOutcome) -> int:
    """How many TODO comments a rewrite adds to a file in which it changes nothing else; 0 where it changes more."""
    if not isinstance(file.result, Changed) or _without_comments(file.before) != _without_comments(file.result.source):
        return 0
    return file.result.source.count(TODO) - file.before.count(TODO)


def done_to(file: FileOutcome, diff: bool) -> str:
    """What a rewrite did to a changed file, or would do."""
    return _todos(added_todos(file), diff) or ("would be rewritten" if diff else "rewritten")


def _todos(number: int, diff: bool) -> str:
    if not number:
        return ""
    return f"would add {count(number, 'TODO comment')}" if diff else f"{count(number, 'TODO comment')} added"


def _without_comments(source: bytes) -> list[bytes]:
    # A line of a notebook's cell begins with a quotation mark.
    return [line for line in source.splitlines() if not line.lstrip(b' \t"').startswith(b"#")]


def count(number: int, noun: str) -> str:
    """``1 file``, ``2 files``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def assumed_torch(result: RunResult) -> str:
    """What to say first where nothing names a torch: the one that the output is for; "" where something does."""
    if result.torch.source or all(map(added_todos, result.changed)):
        return ""
    return (
        f"The project requires no torch version, so the output is for torch {result.torch}, the first with FSDP2. "
        f"--torch selects another."
    )


#: What a report says first of a tree that has FSDP1 and FSDP2 side by side, by what is done with FSDP1's branches.
_BOTH = {
    "keep": "FSDP1 and FSDP2 side by side: FSDP1's branches are kept (--keep-both). --retire removes them.",
    "retire": "FSDP1 and FSDP2 side by side: FSDP1's branches are removed where FSDP2 has one (--retire).",
}


def both_kept(both: str) -> str:
    """The decision about FSDP1's branches beside FSDP2's in one sentence; "" where the tree has none."""
    return _BOTH.get(both, "")


def refusal(result: RunResult) -> str:
    """Why nothing was written, with the files that stand in the way."""
    names = "".join(f"\n  {printable(name)}" for name in result.refused)
    return (
        f"nothing was written: rewriting {count(len(result.refused), 'file')} would overwrite uncommitted "
        f"changes:{names}\nCommit or stash first, or pass --allow-dirty."
    )


def paragraph(result: RunResult) -> str:
    """What happened, what is left, and the command to run next."""
    if not result.with_fsdp1 and not result.errors and any(b"fsdp_compat" in file.before for file in result.outcomes):
        targets = shlex.join(result.paths)
        return (
            f"{count(result.scanned, 'file')} read, no FSDP1 code found, but code that uses fsdp_compat. "
            f"Next: fsdp-migrate rewrite --from shim {targets}"
        )
    if not result.scanned:
        targets = printable(shlex.join(result.paths))
        return f"0 files read: there is no Python file, notebook or configuration under {targets}"
    if not result.with_fsdp1 and not result.errors:
        if result.skipped:
            read = count(result.scanned, "file")
            return f"{read} read, {len(result.skipped)} skipped, no FSDP1 code found in the others."
        return f"{count(result.scanned, 'file')} read, no FSDP1 code found. Nothing to do."
    todos = list(map(added_todos, result.changed))
    only_todos = _todos(sum(todos), result.diff) if all(todos) else ""
    done = only_todos or f"{len(result.changed)} {'would be rewritten' if result.diff else 'rewritten'}"
    manual, review = places(result.of_level(Level.MANUAL)), places(result.of_level(Level.REVIEW))
    sentences = [f"{count(result.scanned, 'file')} read, {len(result.with_fsdp1)} with findings, {done}."]
    if review:
        sentences.append(f"{count(review, 'change')} to review: each is based on a stated assumption.")
    if manual:
        sentences.append(f"{count(manual, 'place')} left to do by hand.")
    if result.errors:
        sentences.append(f"{count(len(result.errors), 'file')} could not be processed.")
    if result.changed and not only_todos:
        sentences += [_written_for(result.torch), newer_saves(result)]
    if importing := result.importing_helpers:
        sentences.append(f"Install fsdp-compat on the machines that train: {new_imports(importing)}.")
    return " ".join(filter(None, [*sentences, _next(result, manual)]))


def new_imports(files: Sequence[FileOutcome]) -> str:
    """How many files a rewrite gave an import of the runtime helpers."""
    return f"{count(len(files), 'file')} now {'imports' if len(files) == 1 else 'import'} fsdp_compat"


def newer_saves(result: RunResult) -> str:
    """What a newer torch could save, as the advice of the findings says; "" where it would be nothing."""
    helpers = [found for each in result.findings if (found := _NEWER_HELPER.search(each.advice))]
    assumptions = [found for each in result.of_level(Level.REVIEW) if (found := _NEWER.search(each.advice))]
    releases = [(int(found["major"]), int(found["minor"])) for found in (*helpers, *assumptions)]
    if not releases:
        return ""
    newest = ".".join(map(str, max(releases)))
    saved = [count(len(helpers), "helper call")] if helpers else []
    saved += [count(len(assumptions), "assumption")] if assumptions else []
    return f"Requiring torch {newest} could save {' and '.join(saved)}: pass --torch {newest}."


def _written_for(torch: TorchRelease) -> str:
    """Which torch the output needs, and why that one."""
    if torch.allowed:
        return f"Written for torch {torch}, because {torch.source} allows {torch.allowed}, which has no FSDP2."
    if torch.newer_than:
        source = torch.source
        return f"Written for torch {torch} ({source}), which is newer than the newest known release {torch.newer_than}."
    return f"Written for torch {torch} ({torch.source or 'no file requires one'})."


def _next(result: RunResult, manual: int) -> str:
    if STDIN in result.paths:
        # No command that can be named has the same text to read.
        return "" if result.changed or manual or result.errors else "Nothing to do."
    targets = printable(shlex.join(result.paths))
    if result.diff and result.changed:
        return f"Next: fsdp-migrate rewrite {'--retire ' if result.both == 'retire' else ''}{targets}"
    if manual and result.changed:
        return f"Next: {_named('fsdp-migrate next', targets)}"
    if manual:
        return "Next: do these by hand, then run the same command again."
    if result.errors:
        return "Next: fix these files, then run the same command again."
    if result.changed:
        if all(repository(file.real.parent) is None for file in result.changed):
            # What only git could do is not named where there is none.
            undo = _named("fsdp-migrate undo", targets)
            return f"Next: train a few steps and compare the losses; {undo} restores the old files."
        return "Next: git diff, then train a few steps and compare the losses."
    return "Nothing to do."


def _named(command: str, targets: str) -> str:
    """A command that takes the current directory where no other is named."""
    return command if targets == "." else f"{command} {targets}"


def printable(text: str) -> str:
    """``text`` on one line, with what could steer a terminal or a runner of GitHub, or cannot be encoded, spelled out.

    A runner takes a line that starts with ``::`` for a command, and ``##[`` anywhere in it.
    """
    return _COMMAND.sub(_in_hexadecimal, spelled_out(text))


def spelled_out(text: str) -> str:
    """``text`` on one line, with what could steer a terminal, or cannot be encoded, spelled out."""
    return _UNUSUAL.sub(_spelled, text)


def _in_hexadecimal(found: re.Match[str]) -> str:
    return "".join(f"\\x{ord(character):02x}" for character in found[0])


def _spelled(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else found[0].encode("unicode_escape").decode("ascii")
