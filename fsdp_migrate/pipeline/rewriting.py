"""The rewrite of all files, and again of those that another result concerns.

Where no wrap of the tree is rewritten, that is all of them: they are left whole. Else it is those whose imports served
other files that have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fsdp_migrate.pipeline.engine import Engine
from fsdp_migrate.pipeline.work import Candidate, Rewriter, contained
from fsdp_rules.verdict.result import Changed, Failed, Result, Unchanged

#: How often imports are looked at again: names may be passed on through so many files.
ROUNDS = 8


def rewritten(
    engine: Engine,
    rewriter: Rewriter,
    candidates: Sequence[Candidate],
    run: Callable[[Rewriter, Sequence[Candidate]], list[Result | Failed]],
) -> list[Result | Failed]:
    """What ``run`` makes of all ``candidates`` by ``rewriter``."""
    results = run(rewriter, candidates)
    found = [one for result in results if isinstance(result, Changed | Unchanged) for one in result.findings]
    kept = engine.left_whole(rewriter.project, found) if rewriter.settings.to != "shim" else None
    if kept is not None:
        rewriter = replace(rewriter, project=kept, prepared={})
        results = run(rewriter, candidates)
    for _ in range(ROUNDS):
        before = {one.path: one.data for one in candidates if not one.is_notebook}
        after = {
            one.path: result.source if isinstance(result, Changed) else one.data
            for one, result in zip(candidates, results, strict=True)
            if not one.is_notebook
        }
        released = contained(partial(engine.released, rewriter.project, before, after))
        if isinstance(released, Failed):
            return results
        project, paths = released
        again = [place for place, one in enumerate(candidates) if one.path in paths and not one.is_notebook]
        if not again:
            return results
        rewriter = replace(rewriter, project=project, prepared={})
        for place, result in zip(again, run(rewriter, [candidates[place] for place in again]), strict=True):
            results[place] = result
    return results
