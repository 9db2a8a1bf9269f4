"""The verdict as one page for a browser: it loads nothing and runs nothing, and follows the reader's light or dark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib import resources

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from fsdp_migrate.verify.compare.difference import Question
from fsdp_migrate.verify.compare.pairs import shown
from fsdp_migrate.verify.recording.recording import Recording
from fsdp_migrate.verify.report.charts import Bar, Cell, Chart, Map, chart, level
from fsdp_migrate.verify.report.facts import by_themselves, headline, place, readable, side, size, spread
from fsdp_migrate.verify.report.module_tree import trees
from fsdp_migrate.verify.verdict import Verdict

#: Rows of the map; a larger model shows those of its parameters that differ first.
LONGEST_MAP = 400
#: Optimizers with curves; a program that steps inside of the backward has one for each parameter.
MOST_OPTIMIZERS = 4

_Line = Sequence[tuple[int, float]]


def render(verdict: Verdict) -> str:
    """A page of HTML that needs no other file and no network."""
    environment = Environment(
        loader=PackageLoader("fsdp_migrate.verify.report", "page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style = (resources.files("fsdp_migrate.verify.report") / "page" / "verify.css").read_text(encoding="utf-8")
    first = verdict.first
    return environment.get_template("verify.html").render(
        verdict=verdict,
        headline=headline(verdict),
        first=first,
        place=place(verdict, first) if first is not None else "",
        size=size(first.gap) if first is not None else "",
        others=[(place(verdict, other), other.before, other.after) for other in verdict.firsts if other is not first],
        questions=spread(verdict),
        charts=list(_charts(verdict)),
        map=map_of(verdict),
        trees=trees(verdict),
        alone=by_themselves(verdict),
        bars=list(_bars(verdict)),
        style=Markup(style),
    )


def _charts(verdict: Verdict) -> Iterator[Chart]:
    before, after = verdict.comparison.before, verdict.comparison.after
    for number, started in enumerate(before.optimizers[:MOST_OPTIMIZERS]):
        whose = f", optimizer {number} ({started.name})" if len(before.optimizers) > 1 else ""
        losses = before.losses(number), after.losses(number)
        norms = _norms(before, number), _norms(after, number)
        found = (
            chart(f"loss passed to backward, mean over ranks{whose}", _both(*losses)),
            chart(f"loss after minus loss before{whose}", {"apart": _minus(*losses)}),
            chart(f"gradient norm{whose}", _both(*norms)),
            chart(f"gradient norm after minus before{whose}", {"apart": _minus(*norms)}),
        )
        yield from (each for each in found if each is not None)


def _both(before: _Line, after: _Line) -> dict[str, _Line]:
    return {"before": before, "after": after}


def _minus(before: _Line, after: _Line) -> _Line:
    return [(step, two - one) for (step, one), (_, two) in zip(before, after, strict=False)]


def _norms(recording: Recording, optimizer: int) -> _Line:
    found = []
    for step in recording.steps:
        clips = step.ranks[0].clips
        if step.optimizer == optimizer and clips and clips[0].value is not None and clips[0].value.scalar is not None:
            found.append((step.step, clips[0].value.scalar))
    return found


def map_of(verdict: Verdict) -> Map | None:
    """How far gradients, state and weights are apart, for each parameter and step."""
    comparison = verdict.comparison
    worst: dict[tuple[str, int], float] = {}
    for question in (Question.GRADIENTS, Question.CLIPPED_GRADIENTS, Question.STATE, Question.WEIGHTS):
        for found in comparison.tally.of(question):
            at = found.name, found.step
            worst[at] = max(worst.get(at, 0.0), found.relative)
    models = comparison.before.models
    made = {(key, step.step) for step in comparison.before.steps for key in step.weights}
    differing = {name for name, _ in worst}
    keys = list(comparison.pairs.keys)
    if len(keys) > LONGEST_MAP:
        keys = sorted(keys, key=lambda key: key not in differing)[:LONGEST_MAP]
    steps = sorted({step.step for step in comparison.before.steps})
    if not keys or not steps:
        return None
    cells = []
    for y, key in enumerate(keys):
        for x, step in enumerate(steps):
            # Its own optimizer may have made fewer steps, and a frozen parameter has none.
            if (key, step) in made:
                relative = worst.get((key, step), 0.0)
                cells.append(Cell(x, y, level(relative), f"{shown(key, models)}, step {step}: {_told(relative)}"))
    return Map(tuple(cells), tuple(shown(key, models) for key in keys), len(steps))


def _told(relative: float) -> str:
    if not relative:
        return "equal"
    return "not comparable" if relative == float("inf") else f"{relative:.2g}"


def _bars(verdict: Verdict) -> Iterator[tuple[str, list[Bar]]]:
    before, after = side(verdict.comparison.before), side(verdict.comparison.after)
    pairs: list[tuple[str, float, float, str, str]] = [
        (f"peak {before.peak_of}", before.peak, after.peak, readable(before.peak), readable(after.peak)),
        ("bytes in collectives per step", before.nbytes, after.nbytes, readable(before.nbytes), readable(after.nbytes)),
    ]
    if before.seconds is not None and after.seconds is not None:
        told = f"{before.seconds:.3f}", f"{after.seconds:.3f}"
        pairs.insert(0, ("seconds per step, median after warm-up", before.seconds, after.seconds, *told))
    for title, one, two, first, second in pairs:
        most = max(one, two) or 1
        yield title, [Bar("before", "before", one / most, first), Bar("after", "after", two / most, second)]
