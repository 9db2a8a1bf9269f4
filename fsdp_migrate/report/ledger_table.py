"""The migration ledger as text, JSON, Markdown and HTML."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fsdp_migrate.check.ledger import Row, State
from fsdp_migrate.report.document import document
from fsdp_migrate.report.markup import cell, inline
from fsdp_migrate.report.summary import count, printable

FORMATS = ("text", "json", "md", "html")
_HEADS = ("native", "shim", "FSDP1", "manual", "places by hand")
_STYLE = (
    "body{font:16px system-ui,sans-serif;color-scheme:light dark;margin:2rem auto;max-width:60rem;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}th,td{padding:.3rem .6rem;border-bottom:1px solid #8886}"
    "td+td,th+th{text-align:right}tr:last-child{font-weight:bold}"
)


@dataclass(frozen=True)
class Ledger:
    """``rows`` by ``by`` (``folder`` or ``owner``), their sum, and both as they were at ``since``, if asked."""

    by: str
    commit: str
    date: str
    rows: Sequence[Row]
    total: Row
    since: str = ""
    before: Sequence[Row] = ()
    total_before: Row | None = None


def render(form: str, ledger: Ledger) -> str:
    """The ledger in one of ``FORMATS``."""
    match form:
        case "json":
            return document("status", _content(ledger))
        case "md":
            return _markdown(ledger)
        case "html":
            return _html(ledger)
        case _:
            return _text(ledger)


def summary(ledger: Ledger) -> str:
    """One sentence."""
    total = ledger.total
    if not total.total:
        return "No file uses FSDP."
    said = f"{total.moved} of {count(total.total, 'file')} moved, {count(total.by_hand, 'place')} left to do by hand"
    if ledger.total_before is not None:
        old = ledger.total_before
        said += f" (at {printable(ledger.since)}: {old.moved} of {old.total}, {count(old.by_hand, 'place')})"
    return f"{said}."


def _table(ledger: Ledger) -> Iterator[tuple[str, ...]]:
    old = {row.name: row for row in ledger.before}
    for row in ledger.rows:
        yield printable(row.name), *_cells(row, old.get(row.name), ledger)
    gone = [row for row in ledger.before if row.name not in {one.name for one in ledger.rows}]
    for row in gone:
        empty = Row(row.name, dict.fromkeys(State, 0), 0)
        yield printable(row.name), *_cells(empty, row, ledger)
    yield "total", *_cells(ledger.total, ledger.total_before, ledger)


def _cells(row: Row, old: Row | None, ledger: Ledger) -> tuple[str, ...]:
    now = [*(row.files[state] for state in State), row.by_hand]
    if not ledger.since:
        return tuple(map(str, now))
    before = [*(old.files[state] for state in State), old.by_hand] if old is not None else [0] * len(now)
    return tuple(f"{new} ({new - was:+d})" if new != was else str(new) for new, was in zip(now, before, strict=True))


def _text(ledger: Ledger) -> str:
    lines = [(ledger.by, *_HEADS), *_table(ledger)] if ledger.total.total or ledger.before else []
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ("  ".join([line[0].ljust(widths[0]), *(map(str.rjust, line[1:], widths[1:]))]) for line in lines)
    return "".join(f"{line}\n" for line in [*table, summary(ledger)])


def _markdown(ledger: Ledger) -> str:
    rows = ((cell(name), *counts) for name, *counts in _table(ledger))
    lines = [(ledger.by, *_HEADS), ("---", *["---:"] * len(_HEADS)), *rows]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"## Migration to FSDP2\n\n{inline(summary(ledger))}\n\n{table}"


def _html(ledger: Ledger) -> str:
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in (ledger.by, *_HEADS))
    body = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>\n" for line in _table(ledger))
    where = html.escape(" ".join(filter(None, [ledger.commit, ledger.date])))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Migration to FSDP2</title>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<style>{_STYLE}</style></head>\n<body><main><h1>Migration to FSDP2</h1>\n"
        f"<p>{html.escape(summary(ledger))}</p>\n"
        f"<p>{where}</p>\n<table><thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></main></body></html>\n"
    )


def _content(ledger: Ledger) -> dict[str, object]:
    def plain(row: Row) -> dict[str, object]:
        return {"name": row.name, **{state.value: row.files[state] for state in State}, "places_by_hand": row.by_hand}

    content: dict[str, object] = {
        "commit": ledger.commit,
        "date": ledger.date,
        "by": ledger.by,
        "rows": [plain(row) for row in ledger.rows],
        "total": plain(ledger.total),
    }
    if ledger.total_before is not None:
        before = {"rows": [plain(row) for row in ledger.before], "total": plain(ledger.total_before)}
        content["since"] = {"ref": ledger.since, **before}
    return content
