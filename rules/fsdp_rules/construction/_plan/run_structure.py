"""What a traced run shows of the models that a call wraps, in place of what would be assumed of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import libcst as cst

from fsdp_rules.file.file import File
from fsdp_rules.model.run_evidence import seen_wrap
from fsdp_rules.project.observed import SeenWrap
from fsdp_rules.verdict.diagnosis import Diagnosis
from fsdp_rules.verdict.finding import Level

ADVICE = "trace the other configurations that you train, too"
SPECIALIZED = "leave out --specialize if you also train other configurations"
#: For each assumption what a run shows in its place, and whether one does.
Shown = Mapping[str, tuple[str, Callable[[SeenWrap], bool]]]


def is_shown(call: cst.Call, assumption: str, table: Shown, file: File) -> bool:
    """Whether a run of ``call`` shows that ``assumption`` holds."""
    shown = seen_wrap(call, file)
    return shown is not None and assumption in table and table[assumption][1](shown)


def shown_by_run(call: cst.Call, assumptions: Iterable[str], table: Shown, file: File) -> Iterator[Diagnosis]:
    """What is said of those of ``assumptions`` that a run shows to hold: another configuration may differ."""
    found = [table[one][0] for one in dict.fromkeys(assumptions) if is_shown(call, one, table, file)]
    if found:
        yield Diagnosis(call, Level.INFO, f"the traced run shows that {', '.join(found)}", ADVICE)


def written_by_run(call: cst.Call, file: File) -> Iterator[Diagnosis]:
    """What is said of each argument that has the run's value in place of what the code reads."""
    shown = seen_wrap(call, file)
    for text in shown.written if shown is not None else ():
        yield Diagnosis(call, Level.REVIEW, f"assumes every run has the values of the traced run: {text}", SPECIALIZED)
