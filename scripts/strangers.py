"""Trains programs that know nothing of this project before and after a rewrite, and compares all that they leave.

    python scripts/strangers.py [NAME …] [--half NAME|all] [--before-only] [--trace] [--output strangers.json]

Each folder of fixtures/strangers is one program, with a program.toml beside it. A program writes into the folder that
STRANGER_OUT names: metrics, checkpoints, logs. Before and after are compared file by file, tensor by tensor, bit for
bit; numbers whose key says norm may differ by 1e-5 relative. Ranks are forked from one process that has imported torch.
Where a program is only announced to differ, what its findings say is done as after_by_hand/edits.toml has it, and it
is compared again: equal after manual, or equal as stated, where a finding says of the rest that it stays different.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ROOT / "fixtures" / "strangers"
sys.path[0] = str(ROOT / "scripts")

import strangers_run as ranks  # noqa: E402
from strangers_compare import Difference, compared  # noqa: E402
from strangers_hand import ByHand, renamed  # noqa: E402

LEVELS = ("safe", "review", "manual", "info")
MODES = ("native", "shim")
HALVES = (
    "open",
    "held",
    "fresh",
    "fresh_held",
    "autumn",
    "autumn_held",
    "winter",
    "winter_held",
    "spring",
    "spring_held",
    "summer",
    "harvest",
    "thaw",
    "frost",
    "rime",
    "sleet",
    "hoar",
    "rind",
    "gale",
    "squall",
)


@dataclass
class Program:
    """One folder of programs."""

    name: str
    description: str
    ranks: int
    half: str
    settings: dict[str, list[str]]
    script: str = ""
    module: str = ""
    devices_per_node: int = 0
    clips: bool = False
    noise: list[str] = field(default_factory=list)
    unaligned: list[str] = field(default_factory=list)

    @property
    def tree(self) -> Path:
        """The folder."""
        return PROGRAMS / self.name

    def explains(self, difference: Difference) -> bool:
        """Whether rounding that the program is known for explains ``difference``."""
        return difference.rounding(self.clips, self.noise, self.unaligned)


@dataclass
class Rewrite:
    """What the command did with one copy."""

    code: int
    levels: dict[str, int]
    manual: list[str]
    text: str = field(repr=False, default="")
    rules: frozenset[str] = frozenset()


@dataclass
class Result:
    """One program, setting and mode."""

    program: str
    setting: str
    mode: str
    verdict: str
    note: str = ""
    code: int = -1
    levels: dict[str, int] = field(default_factory=dict)
    manual: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each program, setting and mode; 1 if any rewrite was silent."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="these programs alone")
    parser.add_argument("--half", choices=(*HALVES, "all"), default="all")
    parser.add_argument("--before-only", action="store_true", help="train twice under FSDP1, and compare these two")
    parser.add_argument("--trace", action="store_true", help="rewrite by what the first setting showed of itself")
    parser.add_argument("--mode", choices=MODES, help="this mode alone")
    parser.add_argument("--keep", type=Path, help="keep the copies, the rewrites and the outputs in this folder")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "strangers.json")
    options = parser.parse_args(arguments)
    chosen = [p for p in programs() if options.half in ("all", p.half)]
    if options.names:
        chosen = [p for p in chosen if p.name in options.names]
    began = time.monotonic()
    ranks.prepare(ROOT)
    results: list[Result] = []
    jobs = [lambda p=program: judged(p, options) for program in chosen]
    for found in two_at_a_time(jobs):
        for result in found:
            results.append(result)
            print(line(result), flush=True)
            for text in result.differences[:4]:
                print(f"      {text}", flush=True)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    counts = collections.Counter((r.mode, r.verdict) for r in results)
    print(f"{len(chosen)} programs in {time.monotonic() - began:.0f} s")
    for (mode, verdict), number in sorted(counts.items()):
        print(f"{number:4} {mode}: {verdict}")
    return int(any(r.verdict in ("silent", "unsteady") for r in results))


def line(result: Result) -> str:
    """The row of the table."""
    levels = " ".join(f"{n} {level}" for level, n in result.levels.items() if n)
    return f"{result.verdict:18} {result.mode:7} {result.program}[{result.setting}] ({levels}) {result.note}"


def programs() -> Iterator[Program]:
    """All of them."""
    for path in sorted(PROGRAMS.glob("*/program.toml")):
        table = tomllib.loads(path.read_text())
        table.setdefault("settings", {"default": []})
        yield Program(name=path.parent.name, **table)


def two_at_a_time(jobs: Sequence[Callable[[], list[Result]]]) -> Iterator[list[Result]]:
    """The results of jobs, each in a fork."""
    waiting, running = list(jobs), {}
    with tempfile.TemporaryDirectory() as directory:
        while waiting or running:
            while waiting and len(running) < 2:
                job, place = waiting.pop(0), Path(directory, str(len(waiting)))
                running[ranks.forked(lambda j=job, p=place: p.write_text(json.dumps([asdict(r) for r in j()])))] = place
            pid, status = os.wait()
            if pid in running:
                place = running.pop(pid)
                if status:
                    raise SystemExit("a job of the runner itself failed; its traceback is above")
                yield [Result(**r) for r in json.loads(place.read_text())]


def judged(program: Program, options: argparse.Namespace) -> list[Result]:
    """Train it before, then after each mode; all settings."""
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        base = options.keep / program.name if options.keep else Path(scratch)
        shutil.rmtree(base, ignore_errors=True)
        original = copied(program.tree, base / "before" / "tree")
        trees = {}
        for mode in [] if options.before_only else [options.mode] if options.mode else MODES:
            tree = copied(program.tree, base / mode / "tree")
            record = traced(program, original, base) if options.trace and mode == "native" else None
            trees[mode] = (tree, rewritten(tree, mode, record))
        edits = program.tree / "after_by_hand" / "edits.toml"
        by_hand = ByHand.read(edits) if edits.exists() else None
        for setting, arguments in program.settings.items():
            began = time.monotonic()
            before = ranks.run(program, arguments, original, base / "before" / setting)
            if options.before_only:
                again = ranks.run(program, arguments, original, base / "again" / setting)
                left = compared(before.out, again.out)
                verdict = "unsteady" if before.failed or again.failed or left else "steady"
                results.append(Result(program.name, setting, "before", verdict, before.failed or again.failed))
                results[-1].differences = [str(d) for d in left]
                results[-1].note = results[-1].note or f"{before.seconds:.1f} s, {files(before.out)} files"
                continue
            if before.failed:
                results.append(Result(program.name, setting, "before", "unsteady", before.failed))
                continue
            for mode, (tree, rewrite) in trees.items():
                after = ranks.run(program, arguments, tree, base / mode / setting)
                left = [] if after.failed else compared(before.out, after.out)
                result = verdict_of(program, setting, mode, rewrite, after.failed, left)
                if result.verdict == "announced" and by_hand is not None and mode == "native":
                    place = base / "by_hand"
                    unfit = by_hand.edited(tree, place / "tree") or by_hand.unfit(rewrite.rules)
                    hand = ranks.run(program, arguments, place / "tree", place / setting)
                    read = partial(renamed, names=by_hand.renamed)
                    left = [] if hand.failed else compared(before.out, hand.out, read)
                    left = [d for d in left if not program.explains(d)]
                    rest = [d for d in left if not by_hand.states(d)]
                    if not hand.failed and not unfit and not rest:
                        result.verdict = "equal as stated" if left else "equal after manual"
                    else:
                        result.note += f"; by hand: {unfit or hand.failed or rest[0]}"
                result.seconds = time.monotonic() - began
                results.append(result)
    return results


def verdict_of(
    program: Program, setting: str, mode: str, rewrite: Rewrite, failed: str, left: list[Difference]
) -> Result:
    """Judge one run after a rewrite."""
    hard = [d for d in left if not program.explains(d)]
    result = Result(program.name, setting, mode, "", failed, rewrite.code, rewrite.levels, rewrite.manual)
    result.differences = [str(d) for d in hard or left]
    if rewrite.code not in (0, 1):
        result.verdict, result.note = "command failed", rewrite.text.strip().splitlines()[-1]
    elif failed or hard:
        result.verdict = "silent" if rewrite.code == 0 else "announced"
    else:
        result.verdict = "equal" if rewrite.code == 0 else "false alarm"
    if left and not hard:
        result.note += f" ({len(left)} within rounding)"
    return result


def copied(tree: Path, place: Path) -> Path:
    """A copy of a program, without what only this runner reads."""
    ignored = shutil.ignore_patterns("__pycache__", "program.toml", "after_by_hand")
    return Path(shutil.copytree(tree, place, ignore=ignored))


def traced(program: Program, tree: Path, base: Path) -> Path | None:
    """The record of the first setting of a program; None where it does not train."""
    from fsdp_migrate.trace.record import dumped, merged

    seen = base / "observed"
    run = ranks.run(program, next(iter(program.settings.values())), tree, base / "traced", seen)
    if run.failed:
        print(f"      {program.name} fails while it is traced: {run.failed}", flush=True)
        return None
    record = base / "trace.json"
    record.write_text(dumped(merged([json.loads(file.read_text()) for file in sorted(seen.glob("observed-*.json"))])))
    return record


def rewritten(tree: Path, mode: str, record: Path | None = None) -> Rewrite:
    """Call the command on a copy, as a user would."""
    report = tree.parent / "report.json"
    options = ["--to", mode, "--torch", ranks.release(), "--report", report, *(["--trace", record] if record else [])]
    command = [Path(sys.executable).parent / "fsdp-migrate", "rewrite", *options, tree]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tree)
    (tree.parent / "said.txt").write_text(done.stdout + done.stderr)
    found: dict[str, Any] = json.loads(report.read_text()) if report.exists() else {"findings": []}
    counts = collections.Counter(f["level"] for f in found["findings"])
    manual = [
        f"{Path(f['path']).name}:{f['line']} {f['rule']}: {f['message']}"
        for f in found["findings"]
        if f["level"] == "manual"
    ]
    rules = frozenset(f["rule"] for f in found["findings"])
    return Rewrite(done.returncode, {k: counts[k] for k in LEVELS}, manual, done.stdout + done.stderr, rules)


def files(out: Path) -> int:
    """How many files a run left."""
    return sum(1 for p in out.rglob("*") if p.is_file())


if __name__ == "__main__":
    sys.exit(main())
