"""A Jupyter notebook as one Python module made of its code cells, and back, with nothing else in the file touched."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from fsdp_migrate.tree.json_spans import items, members, skip_space
from fsdp_rules.verdict.finding import Finding, Level

CELL_RULE = "FSDP900"
CELL_RULE_NAME = "cell-left-alone"

# Statements that no rule knows: they survive a rewrite, unlike comments on an import that is removed.
_BREAK = "_fsdp_migrate_cell_{}_"
_MASK = "_fsdp_migrate_masked_{}_"
_ANY_BREAK = re.compile(r"^_fsdp_migrate_cell_(\d+)_\n", re.MULTILINE)
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ANY_MASK = re.compile(r"_fsdp_migrate_masked_(\d+)_")
#: How messages name a line of the same file.
_NAMED_LINE = re.compile(r"\b(on )?line (\d+)\b")

# `%matplotlib inline`, `!pip install x`, `?name`, `name??`, and `x = !ls` after the name.
_MAGIC = re.compile(r"^(?P<keep>\s*(?:[\w.\[\], ]+=\s*(?=[%!]))?)(?P<magic>[%!?].*|[\w.]+\?{1,2}\s*)$")
# Each cell is compiled on its own by IPython, so this is valid in any cell, but not in the middle of a module.
_FUTURE = re.compile(r"^(?P<keep>)(?P<magic>from __future__ import [^(]*)$")
# These run the rest of their cell as Python in the same namespace.
_PYTHON_CELL_MAGICS = frozenset({"%%time", "%%timeit", "%%capture", "%%prun", "%%memit", "%%mprun", "%%snakeviz"})


class NotebookError(ValueError):
    """The file cannot be taken apart, or put together again, without risk."""


@dataclass
class Cell:
    """One code cell. ``start`` and ``end`` span its source value in the file; ``rows`` holds the file's line of each
    line of the cell, from 1."""

    number: int
    start: int
    end: int
    text: str
    rows: list[int]


@dataclass
class Notebook:
    """A parsed notebook. ``module`` is what the rules see; ``findings`` is about what they cannot see."""

    text: str
    included: list[Cell]
    masked: list[str]
    module: bytes
    origins: list[tuple[Cell, int]]
    findings: list[Finding] = field(default_factory=list)

    def rebuild(self, module: bytes) -> bytes:
        """The notebook with the cells of a rewritten module. Raises :class:`NotebookError` if a cell got lost."""
        parts = _ANY_BREAK.split(module.decode("utf-8"))
        if parts[1::2] != [str(index) for index in range(1, len(self.included))]:
            raise NotebookError("the rewritten cells could not be separated again")
        masks = [int(found) for found in _ANY_MASK.findall(module.decode("utf-8"))]
        if masks != list(range(len(self.masked))):
            raise NotebookError("the IPython magics could not be restored after the rewrite")
        pieces, at = [], 0
        for cell, part in zip(self.included, parts[::2], strict=True):
            new = _ANY_MASK.sub(lambda found: self.masked[int(found[1])], part).removesuffix("\n")
            if new != cell.text:
                pieces += [self.text[at : cell.start], _source_value(self.text[cell.start : cell.end], new)]
                at = cell.end
        return "".join([*pieces, self.text[at:]]).encode("utf-8")

    def relocate(self, finding: Finding) -> Finding:
        """The finding with the lines of the file for those of the module, and the cell named in its message."""
        cell, line = self.origins[min(finding.line, len(self.origins)) - 1]
        end_cell, end_line = self.origins[min(finding.end_line, len(self.origins)) - 1]
        return dataclasses.replace(
            finding,
            line=cell.rows[line],
            end_line=end_cell.rows[end_line],
            message=f"cell {cell.number}, line {line + 1}: {self._in_cells(finding.message)}",
            advice=self._in_cells(finding.advice),
            wrapped=self._in_cells(finding.wrapped),
        )

    def _in_cells(self, text: str) -> str:
        """``text`` with the places in cells that it names by their lines of the module."""

        def placed(found: re.Match[str]) -> str:
            number = int(found[2])
            if not 0 < number <= len(self.origins):
                return found[0]
            cell, line = self.origins[number - 1]
            return f"{'in ' if found[1] else ''}cell {cell.number}, line {line + 1}"

        return _NAMED_LINE.sub(placed, text)


def parse(data: bytes, path: str, has_marker: Callable[[bytes], bool]) -> Notebook | None:
    """Take a notebook apart; None if it is in another language than Python. Raises :class:`NotebookError`."""
    try:
        text = data.decode("utf-8")
        content = json.loads(text.removeprefix("\ufeff"))
    except UnicodeDecodeError as error:
        raise NotebookError(f"could not parse: not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise NotebookError(f"could not parse: broken JSON at line {error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise NotebookError("could not parse: a number with more digits than Python accepts") from error
    try:
        # Half of a character can be written in JSON, and in no source file.
        json.dumps(content, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        raise NotebookError(
            "could not parse: it contains half of a surrogate pair, which is not a character"
        ) from error
    if not isinstance(content, dict) or not isinstance(content.get("cells"), list):
        raise NotebookError("could not parse: it has no list of cells (only notebook format 4 is supported)")
    for number, cell in enumerate(content["cells"], start=1):
        if not isinstance(cell, dict) or not _is_source(cell.get("source", "")) or "cell_type" not in cell:
            raise NotebookError(f"could not parse: cell {number} is not an object with a type and lines of source")
    if _language(content) != "python":
        return None
    return _Builder(path, has_marker).build(text, list(_code_cells(text)))


def _is_source(value: object) -> bool:
    lines = value if isinstance(value, list) else [value]
    return all(isinstance(line, str) for line in lines)


def _language(content: dict[str, object]) -> str:
    metadata = content.get("metadata")
    described = metadata if isinstance(metadata, dict) else {}
    for section, key in (("kernelspec", "language"), ("language_info", "name")):
        part = described.get(section)
        if isinstance(part, dict) and isinstance(part.get(key), str):
            return str(part[key]).lower()
    return "python"


def _code_cells(text: str) -> Iterator[Cell]:
    top = skip_space(text, 1 if text.startswith("\ufeff") else 0)
    cells = {key: start for key, start, _ in members(text, top)}["cells"]
    for number, (start, _) in enumerate(items(text, cells), start=1):
        spans = {key: (begin, end) for key, begin, end in members(text, start)}
        if "source" not in spans or json.loads(text[slice(*spans["cell_type"])]) != "code":
            continue
        begin, end = spans["source"]
        yield Cell(number, begin, end, *_decode_source(text, begin, end))


def _decode_source(text: str, begin: int, end: int) -> tuple[str, list[int]]:
    spans = list(items(text, begin)) if text[begin] == "[" else [(begin, end)]
    source, rows = "", [text.count("\n", 0, begin) + 1]
    for start, stop in spans:
        row = text.count("\n", 0, start) + 1
        if not source or source.endswith("\n"):
            rows[-1] = row
        piece = json.loads(text[start:stop])
        source += piece
        rows += [row] * piece.count("\n")
    return source, rows


def _source_value(old: str, new: str) -> str:
    """``new`` as a JSON value laid out like ``old``: a string or a list of lines, spaced and escaped the same way."""
    ascii_only = old.isascii() and "\\u" in old
    if not old.startswith("["):
        return json.dumps(new, ensure_ascii=ascii_only)
    spans = list(items(old, 0))
    typed = {json.loads(old[start:end]): old[start:end] for start, end in spans}
    opening = old[1 : spans[0][0]] if spans else ""
    closing = old[spans[-1][1] : -1] if spans else ""
    between = old[spans[0][1] : spans[1][0]] if len(spans) > 1 else f",{opening or ' '}"
    # Not splitlines(): Jupyter ends a line at every kind of line break, but a rewrite knows only this one.
    lines = [typed.get(line) or json.dumps(line, ensure_ascii=ascii_only) for line in _LINE.findall(new)]
    return f"[{opening}{between.join(lines)}{closing}]"


@dataclass
class _Builder:
    path: str
    has_marker: Callable[[bytes], bool]
    masked: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    origins: list[tuple[Cell, int]] = field(default_factory=list)
    included: list[Cell] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def build(self, text: str, cells: list[Cell]) -> Notebook:
        for cell in cells:
            self._add(cell)
        module = "".join(self.lines).encode("utf-8")
        origins = self.origins or [(Cell(1, 0, 0, "", [1]), 0)]
        return Notebook(text, self.included, self.masked, module, origins, self.findings)

    def _add(self, cell: Cell) -> None:
        if "_fsdp_migrate_" in cell.text:
            raise NotebookError(f"cell {cell.number} uses a name that starts with _fsdp_migrate_, which is reserved")
        first = cell.text.lstrip().split(maxsplit=1)[:1]
        foreign = bool(first) and first[0].startswith("%%") and first[0] not in _PYTHON_CELL_MAGICS
        lines = None if foreign else self._python_lines(cell)
        if lines is None:
            what = f"a {first[0]} cell" if foreign else "this cell is not valid Python"
            self._note(cell, 0, f"{what} and is not rewritten", quiet=foreign)
            return
        if self.included:
            self._append(_BREAK.format(len(self.included)) + "\n", (cell, 0))
        self.included.append(cell)
        for line, origin in lines:
            self._append(line, (cell, origin))

    def _append(self, line: str, origin: tuple[Cell, int]) -> None:
        self.lines.append(line)
        self.origins.append(origin)

    def _python_lines(self, cell: Cell) -> list[tuple[str, int]] | None:
        """Lines that parse, each with its line in the cell from 0; None if there are none."""
        plain = [(f"{line}\n", index) for index, line in enumerate(cell.text.split("\n"))]
        if _parses(plain) and "__future__" not in cell.text:
            return plain
        lines: list[tuple[str, int]] = []
        masked: list[tuple[str, int]] = []
        texts = cell.text.split("\n")
        index = 0
        while index < len(texts):
            start, line = index, texts[index]
            index += 1
            found = _MAGIC.match(line) or _FUTURE.match(line)
            if not found:
                lines.append((f"{line}\n", start))
                continue
            # A magic goes on after a backslash, like a shell command.
            while line.endswith("\\") and index < len(texts):
                line += "\n" + texts[index]
                index += 1
            keep = found["keep"]
            lines.append((f"{keep}{_MASK.format(len(self.masked) + len(masked))}\n", start))
            masked.append((line[len(keep) :], start))
        if not _parses(lines):
            return None
        for text, start in masked:
            if self.has_marker(text.encode("utf-8")):
                self._note(cell, start, "an IPython magic runs this code, so it is not rewritten", quiet=False)
        self.masked += [text for text, _ in masked]
        return lines

    def _note(self, cell: Cell, line: int, message: str, *, quiet: bool) -> None:
        concerns_fsdp = self.has_marker(cell.text.encode("utf-8"))
        if quiet and not concerns_fsdp:
            return
        level = Level.MANUAL if concerns_fsdp else Level.INFO
        advice = "Rewrite its FSDP code by hand, or make it plain Python and run again." if concerns_fsdp else ""
        row = cell.rows[line]
        text = f"cell {cell.number}, line {line + 1}: {message}"
        self.findings.append(Finding(CELL_RULE, CELL_RULE_NAME, self.path, row, 0, row, 0, level, text, advice))


def _parses(lines: list[tuple[str, int]]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse("".join(line for line, _ in lines))
        except (SyntaxError, ValueError):
            return False
    return True
