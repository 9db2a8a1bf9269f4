"""Changes conditions of the code one by one, and lists those changes that no test notices.

python scripts/mutate.py --mutants 200 --seed 7
python scripts/mutate.py --mutants 40 --only rules/fsdp_rules/loop

Each change is made in a copy of the repository, where the tests most likely to notice it run first: those that are
named after the file, those that import it or name its rule, and those of what is built on it, then all of its part. A
test counts that fails with the change and passes without. What survives is a condition that no test holds: read it,
and add a test.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: The code that is changed, with the tests of each part.
PARTS = {
    "rules/fsdp_rules": "tests/rules",
    "shim/fsdp_compat": "tests/shim",
    "fsdp_migrate/checkpoints": "tests/checkpoints",
    "fsdp_migrate/verify": "tests/verify",
}
_PAIRS = ((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE))
#: A test may notice a change in what its subject imports, over so many modules.
STEPS = 3
OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = dict([*_PAIRS, *((right, left) for left, right in _PAIRS)])
#: No answer: an endless loop, or a machine with other work. It counts as a survivor, to be read.
SLOW = "it takes too long"
_TEST = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)


class Mutant(NamedTuple):
    """A condition at characters ``start`` to ``end`` of the line, which becomes ``text``."""

    path: str
    line: int
    start: int
    end: int
    text: str


def mutants(path: Path) -> Iterator[Mutant]:
    """Every change of a condition that stands on one line of the file ``path``."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        tests = [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While) else []
        tests += node.ifs if isinstance(node, ast.comprehension) else []
        changed: list[tuple[ast.expr, ast.expr]] = [(test, ast.UnaryOp(ast.Not(), test)) for test in tests]
        if isinstance(node, ast.BoolOp):
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            changed += [(node, ast.BoolOp(other, node.values)), (node, node.values[0]), (node, node.values[-1])]
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in OPPOSITE:
            compare = copy.copy(node)
            compare.ops = [OPPOSITE[type(node.ops[0])](), *node.ops[1:]]
            changed.append((node, compare))
        for old, new in changed:
            if old.lineno == old.end_lineno and old.end_col_offset is not None:
                text = f"({ast.unparse(new)})"
                yield Mutant(str(path.relative_to(ROOT)), old.lineno, old.col_offset, old.end_col_offset, text)


def importers(path: str) -> dict[str, int]:
    """The base names of the modules that import ``path``, each by how many steps away it is; its own is at 0."""
    part = ROOT / next(part for part in PARTS if path.startswith(part))
    texts = {file.stem: file.read_text(encoding="utf-8") for file in part.rglob("*.py") if file.stem != "__init__"}
    found, pending = {Path(path).stem: 0}, [Path(path).stem]
    for stem in pending:
        imports = re.compile(rf"^ *from [\w.]*\b{stem} import |^ *from [\w.]+ import .*\b{stem}\b", re.MULTILINE)
        for name, text in texts.items():
            if name not in found and found[stem] < STEPS and imports.search(text):
                found[name] = found[stem] + 1
                pending.append(name)
    return found


def tests_of(path: str) -> list[str]:
    """All test files of the part that ``path`` is in, the most likely to notice a change of it first."""
    part = next(part for part in PARTS if path.startswith(part))
    module = Path(path).with_suffix("").as_posix().removeprefix("rules/").removeprefix("shim/").replace("/", ".")
    rule = re.search(r'^    id = "(FSDP\d+)"', (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    room = Path(PARTS[part], *Path(path).relative_to(part).parts[:1]).as_posix()
    steps = importers(path)
    ranked = []
    for file in sorted((ROOT / PARTS[part]).rglob("test_*.py")):
        text, name = file.read_text(encoding="utf-8"), file.relative_to(ROOT).as_posix()
        subject = file.stem.removeprefix("test_")
        likely = (
            max((2 * (STEPS + 1 - far) for stem, far in steps.items() if stem.strip("_") == subject), default=0)
            + 3 * (Path(path).stem.strip("_") in subject)
            + 3 * (module in text)
            + 2 * (rule is not None and rule[1] in text)
            + name.startswith(f"{room}/")
        )
        ranked.append((-likely, name))
    return [name for _, name in sorted(ranked)]


def noticed(mutant: Mutant, copied: Path, seconds: float) -> str:
    """The test that notices ``mutant`` in the repository ``copied``; empty where none does."""
    file = copied / mutant.path
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: mutant.start] + mutant.text.encode() + line[mutant.end :]
    try:
        file.write_bytes(b"".join(lines))
        found = run(copied, tests_of(mutant.path), seconds)
    finally:
        file.write_bytes(whole)
    return found if not found.startswith("tests/") or not run(copied, [found], seconds) else ""


def run(copied: Path, tests: Sequence[str], seconds: float) -> str:
    """The first of ``tests`` that fails, or what else ended the run; empty where all pass."""
    paths = os.pathsep.join(str(copied / part) for part in (".", "rules", "shim"))
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=copied,
            env={**os.environ, "PYTHONPATH": paths},
            capture_output=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return SLOW
    said = _TEST.search(done.stdout.decode(errors="replace"))
    return "" if done.returncode in (0, 5) else said[1] if said else f"pytest ends with {done.returncode}"


def main() -> int:
    """Print each mutant as it is tried, and the survivors; 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mutants", type=int, default=200, help="how many changes")
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--only", default="", help="only of files whose path begins so")
    parser.add_argument("--seconds", type=float, default=900, help="the longest time for the tests of one")
    options = parser.parse_args()
    files = [file for part in PARTS for file in sorted((ROOT / part).rglob("*.py"))]
    wanted = [file for file in files if str(file.relative_to(ROOT)).startswith(options.only)]
    every = [mutant for file in wanted for mutant in mutants(file)]
    drawn = random.Random(options.seed).sample(every, min(options.mutants, len(every)))
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder, "copy")
        left_out = shutil.ignore_patterns(".git", ".venv", ".matrix", ".frameworks", "__pycache__", "build")
        shutil.copytree(ROOT, copied, ignore=left_out, symlinks=True)
        for number, mutant in enumerate(drawn, start=1):
            found = noticed(mutant, copied, options.seconds)
            if found in ("", SLOW):
                survivors.append(mutant)
            print(f"{number}. {mutant.path}:{mutant.line} {mutant.text}: {found or 'SURVIVES'}", flush=True)
    print(f"{len(drawn) - len(survivors)} of {len(drawn)} changes are noticed, drawn from {len(every)}; survivors:")
    for mutant in survivors:
        print(f"{mutant.path}:{mutant.line}: {mutant.text}")
    return int(bool(survivors))


if __name__ == "__main__":
    sys.exit(main())
