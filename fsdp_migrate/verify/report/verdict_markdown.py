"""The verdict as Markdown, for a pull request."""

from __future__ import annotations

from fsdp_migrate.report.markup import code, inline
from fsdp_migrate.verify.report.facts import WITHIN, by_themselves, headline, place, readable, side, size, spread
from fsdp_migrate.verify.verdict import Verdict


def render(verdict: Verdict) -> str:
    """A heading, what differs, a table of the questions, a table of the cost."""
    parts = ["## fsdp-migrate verify", "", f"**{inline(headline(verdict))}**", ""]
    first = verdict.first
    if first is not None:
        told = size(first.gap)
        parts += [f"- First difference: {inline(place(verdict, first))}{f' ({inline(told)})' if told else ''}"]
        parts += [f"- Before: {code(str(first.before))}", f"- After: {code(str(first.after))}"]
        if verdict.cause is not None:
            rule = f" ({verdict.cause.rule})" if verdict.cause.rule else ""
            parts += [f"- Cause: {inline(verdict.cause.message)}{rule}", f"- What to do: {inline(verdict.cause.cure)}"]
        parts += [f"- Differs by itself: {code(name)}: {inline(what)}" for name, what in by_themselves(verdict) or ()]
        parts.append("")
    parts += [f"| question | compared | bit for bit | {WITHIN} | different |", "|---|---:|---:|---:|---:|"]
    parts += [
        f"| {row.question} | {row.compared or ''} | {row.equal if row.compared else ''} | {row.rounded or ''} "
        f"| {row.different or ''} |"
        for row in spread(verdict)
    ]
    before, after = side(verdict.comparison.before), side(verdict.comparison.after)
    parts += ["", "| cost | before | after |", "|---|---:|---:|"]
    if before.seconds is not None and after.seconds is not None:
        parts.append(f"| seconds per step | {before.seconds:.3f} | {after.seconds:.3f} |")
    parts.append(f"| peak {before.peak_of} | {readable(before.peak)} | {readable(after.peak)} |")
    parts.append(f"| collectives per step | {before.collectives} | {after.collectives} |")
    parts.append(f"| their bytes | {readable(before.nbytes)} | {readable(after.nbytes)} |")
    parts += ["", *(f"- {inline(note)}" for note in verdict.notes)]
    return "\n".join(parts).rstrip() + "\n"
