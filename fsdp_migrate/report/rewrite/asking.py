"""``rewrite --interactive``: shows a hunk with its findings, and asks what is to become of it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from fsdp_migrate.pipeline.fitting import apart, missing_names
from fsdp_migrate.pipeline.hunks import LINE, Choice, Hunk, chosen, hunks
from fsdp_migrate.pipeline.outcome import FileOutcome
from fsdp_migrate.report.by_file import STYLES
from fsdp_migrate.report.diff import unified
from fsdp_migrate.report.rewrite.terminal_report import show_diff
from fsdp_migrate.report.shorten import shortened
from fsdp_migrate.report.summary import count, printable
from fsdp_rules.engine.catalogue import catalogue
from fsdp_rules.verdict.finding import Finding, Level
from fsdp_rules.verdict.result import Changed, Unchanged

KEYS = {
    "a": "accept this hunk",
    "s": "skip this hunk",
    "f": "skip the rest of this file",
    "e": "edit the new lines, then accept them",
    "q": "quit: nothing is written, and the same command continues from here",
    "?": "print this",
}
AFTERWARDS = {
    "c": "ask again about the hunks with these calls",
    "w": "write the accepted hunks; the project does not train until the others are written too",
    "q": "quit: nothing is written, and the same command continues from here",
    "?": "print this",
}


class Quit(Exception):
    """The user stops; the answers so far are with the :class:`Asker`."""


@dataclass
class Asker:
    """Asks about every hunk that ``choices`` does not answer yet, and adds the answer to them.

    ``key`` returns what the user pressed, ``edit`` what became of a text, None where it was not saved.
    """

    console: Console
    key: Callable[[], str]
    edit: Callable[[str, str], str | None]
    choices: dict[str, Choice]
    skipped: int = field(default=0, init=False)

    def __call__(self, files: Sequence[FileOutcome]) -> dict[str, Changed | Unchanged]:
        """What each of ``files`` comes to, by its path; what was skipped has no finding. Raises :class:`Quit`."""
        together = catalogue().moves_together
        while True:
            decided: dict[str, Changed | Unchanged] = {}
            left: dict[Finding, list[str]] = {}
            self.skipped = 0
            for number, file in enumerate(files, start=1):
                if isinstance(file.result, Changed):
                    found = hunks(file.path, file.before, file.result.source)
                    text = self._file(file, found, f"file {number} of {len(files)}")
                    gone = self._skipped(file, found)
                    left |= gone
                    kept = tuple(finding for finding in file.findings if finding not in gone)
                    decided[file.path] = Changed(text, kept) if text != file.before else Unchanged(kept)
            taken = [finding for result in decided.values() for finding in result.findings if _moves(finding)]
            again = apart(taken, [*filter(_moves, left)], together)
            if not again or not self._choose_again(again):
                return decided
            for key in {key for finding in again for key in left[finding]}:
                del self.choices[key]

    def _skipped(self, file: FileOutcome, found: Sequence[Hunk]) -> dict[Finding, list[str]]:
        """The findings of the hunks of ``file`` that are not taken, with the keys of those hunks."""
        gone: dict[Finding, list[str]] = {}
        for hunk in found:
            if not self.choices[hunk.key].taken:
                self.skipped += 1
                for finding in _about(file, hunk):
                    gone.setdefault(finding, []).append(hunk.key)
        return gone

    def _choose_again(self, apart: Sequence[Finding]) -> bool:
        """Whether the hunks with these findings are to be asked about again. Raises :class:`Quit`."""
        places = [f"{printable(finding.path)}:{finding.line}" for finding in apart]
        where = ", ".join([*dict.fromkeys(places)][:5]) + (" and others" if len(set(places)) > 5 else "")
        self.console.print()
        self.console.print(
            Text(f"The skipped FSDP1 calls do not work with the accepted changes ({where}).", style="bold")
        )
        while True:
            self.console.print(
                Text("[c]hoose these again, [w]rite as chosen, [q]uit, [?] help: ", style="bold"), end=""
            )
            pressed = self.key()
            self.console.print(Text(printable(pressed)))
            match pressed:
                case "c":
                    return True
                case "w":
                    return False
                case "q":
                    raise Quit
                case _:
                    for key, meaning in AFTERWARDS.items():
                        self.console.print(Text(f"  {key}  {meaning}"))

    def _file(self, file: FileOutcome, found: Sequence[Hunk], where: str) -> bytes:
        while True:
            for number, hunk in enumerate(found, start=1):
                if hunk.key not in self.choices:
                    self._show(file, hunk, f"{where}, hunk {number} of {len(found)}")
                    self._ask(hunk, found)
            text = chosen(file.before, found, self.choices)
            if (why := _broken(file, text)) is not None:
                again = list(found)
            elif names := _missing(file, text):
                why = f"these choices leave {', '.join(names)} without a definition or an import"
                again = [hunk for hunk in found if _imports(hunk, names)] or list(found)
            else:
                return text
            self.console.print(Text(f"{printable(file.path)}: {why}: choose again", style="bold"))
            for hunk in again:
                del self.choices[hunk.key]

    def _show(self, file: FileOutcome, hunk: Hunk, where: str) -> None:
        self.console.print()
        self.console.print(Text.assemble((f"{printable(file.path)}:{hunk.start + 1}", "bold"), f"  {where}"))
        for finding in shortened(_about(file, hunk))[0]:
            self._finding(finding)
        show_diff(_diff(file.path, hunk), self.console)

    def _finding(self, finding: Finding) -> None:
        label = f"{finding.rule} {finding.level.value}"
        self.console.print(Text.assemble((label, STYLES[finding.level]), f"  {printable(finding.text)}"))
        if finding.advice:
            self.console.print(Text(f"    {printable(finding.advice)}", style="dim"))

    def _ask(self, hunk: Hunk, of_file: Sequence[Hunk]) -> None:
        while hunk.key not in self.choices:
            self.console.print(
                Text("[a]ccept, [s]kip, skip the [f]ile, [e]dit, [q]uit, [?] help: ", style="bold"), end=""
            )
            pressed = self.key()
            self.console.print(Text(printable(pressed)))
            match pressed:
                case "a":
                    self.choices[hunk.key] = Choice(True)
                case "s":
                    self.choices[hunk.key] = Choice(False)
                case "f":
                    for other in of_file:
                        self.choices.setdefault(other.key, Choice(False))
                case "e":
                    self._edit(hunk)
                case "q":
                    raise Quit
                case _:
                    for key, meaning in KEYS.items():
                        self.console.print(Text(f"  {key}  {meaning}"))

    def _edit(self, hunk: Hunk) -> None:
        try:
            text = b"".join(hunk.new).decode("utf-8")
        except UnicodeDecodeError:
            self.console.print(Text("these lines are not UTF-8: accept or skip them"))
            return
        edited = self.edit(text, ".py")
        if edited is not None:
            self.choices[hunk.key] = Choice(True, edited.encode("utf-8"))


def finished(asker: Asker) -> str:
    """What to say of what was left out."""
    if not asker.skipped:
        return ""
    return f"{count(asker.skipped, 'hunk')} skipped: FSDP1 code remains there, and `fsdp-migrate check` lists it."


def _moves(finding: Finding) -> bool:
    return finding.level in (Level.SAFE, Level.REVIEW)


def _about(file: FileOutcome, hunk: Hunk) -> Iterator[Finding]:
    for finding in file.findings:
        if finding.line <= hunk.end and finding.end_line > hunk.start and finding.level is not Level.INFO:
            yield finding


def _diff(path: str, hunk: Hunk) -> Iterator[bytes]:
    """The lines of the hunk as a patch has them, without the names of the file."""
    for number, line in enumerate(unified(path, b"".join(hunk.old), b"".join(hunk.new))):
        if number > 2:
            yield from LINE.findall(line)


def _broken(file: FileOutcome, text: bytes) -> str | None:
    """Why a file with some of its hunks cannot be meant."""
    if file.real.suffix != ".py" or not isinstance(file.result, Changed):
        return None
    try:
        ast.parse(text)
    except (SyntaxError, ValueError) as error:
        said = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        return f"these choices do not parse ({said})"
    return None


def _missing(file: FileOutcome, text: bytes) -> list[str]:
    """Names that a file with some of its hunks reads, and neither binds nor imports."""
    if file.real.suffix != ".py" or not isinstance(file.result, Changed):
        return []
    return missing_names(file.before, text, file.result.source)


def _imports(hunk: Hunk, names: Sequence[str]) -> bool:
    """Whether the hunk adds or removes an import of one of ``names``."""
    old, new = (b"".join(lines).decode("utf-8", errors="replace") for lines in (hunk.old, hunk.new))
    return "import" in old + new and any(
        bool(re.search(rf"\b{re.escape(name)}\b", old)) != bool(re.search(rf"\b{re.escape(name)}\b", new))
        for name in names
    )
