"""Traces programs under FSDP1, rewrites each with its record and without, and prints what the record changes.

    python scripts/trace_matrix.py [NAME …] [--strangers] [--train] [--output FILE]

The programs are those of the parity matrix and the fixture projects; ``--strangers`` takes those of fixtures/strangers
that have a setting, of which the first is traced. Two counts have to be 0: uses of sharded models that FSDP2 lacks or
answers otherwise and that have neither an edit nor a finding, and answers of the analysis that the run contradicts.
Helpers are wraps that ``fsdp_compat.shard`` applies; those for reasons of run time are counted by themselves: without
the record, with it, and with ``--specialize``. ``--train`` trains what these two change in the matrix, against FSDP1.
"""

from __future__ import annotations

import argparse
import ast
import collections
import difflib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "scripts"))

import strangers_run as ranks  # noqa: E402
from strangers import copied  # noqa: E402
from strangers import programs as strangers  # noqa: E402

from fsdp_migrate.pipeline import run  # noqa: E402
from fsdp_migrate.pipeline.engine import RulesEngine  # noqa: E402
from fsdp_migrate.pipeline.outcome import RunResult  # noqa: E402
from fsdp_migrate.pipeline.request import Request  # noqa: E402
from fsdp_migrate.report.progress import NoProgress  # noqa: E402
from fsdp_migrate.trace.evidence import Evidence  # noqa: E402
from fsdp_migrate.trace.record import Trace, merged  # noqa: E402
from fsdp_rules.settings import Settings  # noqa: E402
from fsdp_rules.verdict.finding import Finding, Level  # noqa: E402
from fsdp_rules.verdict.result import Changed  # noqa: E402
from tests.parity import harness  # noqa: E402
from tests.parity import programs as matrix  # noqa: E402

PROJECTS = ("minigpt", "two_models", "vision", "llama_style")
#: Findings about wraps that need the helper, and reasons that only a run can take away.
HELPER = re.compile(r"applies FSDP1's arguments (?:at run time|where this partial object is called)|shards its module")
RUN_TIME = re.compile(
    r"only known at run time|computed where it is built|applied at run time|BatchNorm|is built before"
)
#: What both classes have, and answer otherwise.
OTHERWISE = frozenset({"state_dict", "load_state_dict"})
CONTRADICTED = re.compile(r"is (?:not )?a sharded model to this tool, since .* runs of this line")


@dataclass
class Traced:
    """One program to be traced: ``tree`` has its files; ``program`` is one of the matrix, to be trained again."""

    name: str
    tree: Path
    ranks: int
    arguments: list[str] = field(default_factory=list)
    script: str = "train.py"
    module: str = ""
    devices_per_node: int = 0
    program: matrix.Program | None = None


@dataclass
class Row:
    """What the record changes of one program."""

    name: str
    failed: str = ""
    review: tuple[int, ...] = ()
    conditional: tuple[int, ...] = ()
    helpers: tuple[int, ...] = ()
    of_run_time: tuple[int, ...] = ()
    left: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    differs: bool = False
    observed: int = 0
    silent: list[str] = field(default_factory=list)
    contradicted: list[str] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each program that the record changes; 1 if one of the two counts is not 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument(
        "--strangers", action="store_true", help="take the programs of fixtures/strangers with settings"
    )
    parser.add_argument("--train", action="store_true", help="train again what the record changes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(arguments)
    ranks.prepare(ROOT)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        for number, one in enumerate(_strangers() if options.strangers else _matrix(Path(directory, "trees"))):
            if options.names and one.name not in options.names:
                continue
            place = Path(directory, str(number))
            row = measured(one, place, options.train)
            shutil.rmtree(place, ignore_errors=True)
            rows.append(row)
            if row.failed or row.differs or row.silent or row.contradicted or len(set(row.helpers)) > 1:
                print(_line(row), flush=True)
    total = summary(rows)
    print(json.dumps(total, indent=2))
    if options.output:
        options.output.write_text(json.dumps({**total, "rows": [vars(row) for row in rows]}, indent=1) + "\n")
    return int(bool(total["silent"] or total["contradicted"]))


def measured(one: Traced, place: Path, train: bool) -> Row:
    """Trace, rewrite twice, and count."""
    row = Row(one.name)
    seen = place / "observed"
    done = ranks.run(one, [*one.arguments, *([str(place / "before.pt")] if one.program else [])], one.tree, place, seen)
    if done.failed:
        row.failed = done.failed
        return row
    trace = merged([json.loads(file.read_text()) for file in sorted(seen.glob("observed-*.json"))])
    sure = Evidence(trace)
    plain, by_run, special = (_rewritten(one.tree, each) for each in (None, sure, replace(sure, specializes=True)))
    three = (plain, by_run, special)
    row.review = _each(three, lambda found: found.level is Level.REVIEW)
    row.conditional = _each(three, lambda found: "if this model is sharded" in found.message)
    row.helpers = _each(three, lambda found: bool(HELPER.search(found.message)))
    row.of_run_time = _each(three, lambda found: bool(HELPER.search(found.message) and RUN_TIME.search(found.message)))
    reviews = [[f"{f.rule} {f.message}" for f in r.findings if f.level is Level.REVIEW] for r in three]
    row.left, row.gone = reviews[1], [text for text in reviews[0] if text not in reviews[1]]
    texts = [_texts(result, one.tree) for result in three]
    row.differs = texts[0] != texts[1]
    row.contradicted = [f"{f.path}:{f.line} {f.message}" for f in by_run.findings if CONTRADICTED.search(f.message)]
    uses = sorted(set(_uses(trace)))
    row.observed = len(uses)
    row.silent = [f"{path}:{line} .{name}" for path, line, name in uses if not _is_known(path, line, by_run, one.tree)]
    changed = [text for number, text in enumerate(texts[1:], 1) if text not in texts[:number]]
    if train and one.program is not None:
        row.trained = [_trained(one, text, place, number) for number, text in enumerate(changed)]
    return row


def _matrix(place: Path) -> Iterator[Traced]:
    for program in matrix.programs():
        tree = place / program.name
        tree.mkdir(parents=True)
        for path, text in harness.files_of(program).items():
            (tree / path).write_text(text)
        yield Traced(program.name, tree, program.world_size, program=program)
    for name in PROJECTS:
        tree = copied(ROOT / "fixtures" / "projects" / name, place / name)
        yield Traced(name, tree, 2, ["--out", str(place / "out"), "--steps", "4"])


def _strangers() -> Iterator[Traced]:
    for one in strangers():
        if len(one.settings) > 1:
            first = next(iter(one.settings.values()))
            yield Traced(one.name, one.tree, one.ranks, first, one.script, one.module, one.devices_per_node)


def _rewritten(tree: Path, observe: Evidence | None) -> RunResult:
    read_as = None if observe is None else observe.written
    request = Request((str(tree),), Settings(), diff=True, jobs=1, observe=observe, read_as=read_as)
    return run.rewrite(request, RulesEngine(), NoProgress())


def _each(results: Sequence[RunResult], counts: Callable[[Finding], bool]) -> tuple[int, ...]:
    return tuple(sum(counts(f) for f in one.findings if f.level is not Level.INFO) for one in results)


def _texts(result: RunResult, tree: Path) -> dict[str, str]:
    return {
        one.real.relative_to(tree.resolve()).as_posix(): one.result.source.decode()
        for one in result.changed
        if isinstance(one.result, Changed)
    }


def _uses(trace: Trace) -> Iterator[tuple[str, int, str]]:
    """Where the run used of a sharded model what FSDP2 lacks, or answers otherwise; early optimizers with them."""
    lacking = _lacking()
    for path, position, name, *_ in (*trace.reads, *trace.statics):
        if name in lacking:
            yield path, position[0], name
    for wrap in trace.wraps:
        for number in wrap["optimizers before"]:
            if at := trace.optimizers[number]["at"]:
                yield at[0], at[1], "optimizer before the wrap"


def _lacking() -> frozenset[str]:
    from torch import nn
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    public = {name for name in vars(FullyShardedDataParallel) if not name.startswith("__")}
    return OTHERWISE | (public - set(dir(nn.Module)) - set(dir(FSDPModule)))


def _is_known(path: str, line: int, result: RunResult, tree: Path) -> bool:
    """Whether the statement at ``line`` is edited or has a finding."""
    source = (tree / path).read_text()
    first, last = _statement(ast.parse(source), line)
    found: list[Finding] = [f for f in result.findings if Path(f.path).resolve() == (tree / path).resolve()]
    if any(f.line <= last and (f.end_line or f.line) >= first for f in found):
        return True
    after = _texts(result, tree).get(path, source)
    opcodes = difflib.SequenceMatcher(None, source.splitlines(), after.splitlines(), autojunk=False).get_opcodes()
    return any(tag != "equal" and a < last and b >= first for tag, a, b, _, _ in opcodes)


def _statement(tree: ast.AST, line: int) -> tuple[int, int]:
    """The first and last line of the innermost statement around ``line``; of a block its head alone."""
    around = [n for n in ast.walk(tree) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or n.lineno)]
    inner = min(around, key=lambda n: (n.end_lineno or n.lineno) - n.lineno)
    body = getattr(inner, "body", None)
    return inner.lineno, body[0].lineno - 1 if isinstance(body, list) and body else inner.end_lineno or inner.lineno


def _trained(one: Traced, texts: Mapping[str, str], place: Path, number: int) -> str:
    import torch

    assert one.program is not None
    after = copied(one.tree, place / f"after{number}" / "tree")
    for path, text in texts.items():
        (after / path).write_text(text)
    done = ranks.run(one, [str(place / "after.pt")], after, place / f"again{number}")
    if done.failed:
        return f"failed: {done.failed}"
    results = [torch.load(place / f"{name}.pt", weights_only=True) for name in ("before", "after")]
    outcome = harness.judge(one.program, *results)
    return outcome.verdict.value if outcome.verdict.good else f"{outcome.verdict.value}: {outcome.brief}"


def summary(rows: Sequence[Row]) -> dict[str, Any]:
    """All rows in numbers: without the record, with it, and with its values written."""
    done = [row for row in rows if not row.failed]

    def each(name: str) -> list[int]:
        return [sum(getattr(row, name)[side] for row in done) for side in (0, 1, 2)]

    trained = collections.Counter(one.partition(":")[0] for row in done for one in row.trained)
    return {
        "programs": len(rows),
        "failed": [row.name for row in rows if row.failed],
        "review": each("review"),
        "if this model is sharded": each("conditional"),
        "helpers": each("helpers"),
        "helpers for reasons of run time": each("of_run_time"),
        "rewritten otherwise": sum(row.differs for row in done),
        "observed": sum(row.observed for row in done),
        "silent": sum(len(row.silent) for row in done),
        "contradicted": sum(len(row.contradicted) for row in done),
        "trained": dict(trained),
    }


def _line(row: Row) -> str:
    numbers = (("review", row.review), ("helpers", row.helpers))
    told = ", ".join(f"{name} {' to '.join(map(str, found))}" for name, found in numbers if any(found))
    said = [told, *(f"silent {one}" for one in row.silent), *row.contradicted, row.failed, *row.trained]
    return f"{row.name}: {'; '.join(one for one in said if one)}"


if __name__ == "__main__":
    raise SystemExit(main())
