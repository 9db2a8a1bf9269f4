"""How long a rewrite takes, against reading the same tree and against a libcst codemod.

    python benchmarks/rewrite_speed.py [--files 5000] [--fsdp 40] [--repeat 3] [--output benchmarks/rewrite_speed.json]

Makes a tree of Python files in a temporary directory, of which a few train with FSDP1, and measures in CPU seconds
(user and system, all child processes included; wall times say more about the machine's other work):

- ``floor``: walk the tree and read every file, in this process;
- ``parse``: ``libcst.parse_module`` of the FSDP files alone, in this process;
- ``start``: ``fsdp-migrate --version``;
- ``library``: ``import libcst`` in a new process, which every rewrite needs and the version does not;
- ``rewrite``: ``fsdp-migrate rewrite --diff --jobs 1`` of the whole tree;
- ``check``: ``fsdp-migrate check --no-cache --jobs 1`` of the same tree without the FSDP files;
- ``wraps_600``, ``wraps_3000``: ``fsdp-migrate rewrite --diff`` of one file with so many wrapping calls;
- ``peer``: ``python -m libcst.tool codemod rename.RenameCommand`` of a directory with the FSDP files alone: libcst's
  own command line at a smaller task, one import renamed, at its best, since it parses every file that it is given.

Prints JSON with the best of all repetitions, ratios, and the peak resident memory of the two commands.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.conditions import conditions

PROJECTS = Path(__file__).parent.parent / "fixtures" / "projects"
RENAME = [
    *("-m", "libcst.tool", "codemod", "rename.RenameCommand", "--no-format", "--jobs", "1", "--unified-diff", "3"),
    *("--old_name", "torch.distributed.fsdp.FullyShardedDataParallel"),
    *("--new_name", "torch.distributed.fsdp.fully_shard"),
]
MIB = 1024 * 1024
#: How many wrapping calls the files have that show how time grows with their number.
WRAPS = (600, 3000)


@dataclass(frozen=True)
class Usage:
    """What one process and its children used."""

    cpu_s: float
    wall_s: float
    peak_mib: float


def plain_source(seed: int) -> str:
    """A file of some 200 lines as any library has them, with no FSDP marker in it."""
    draw = random.Random(seed)
    parts = ["from __future__ import annotations\n\nimport json\nimport os\n\nimport numpy as np\n"]
    for index in range(draw.randint(8, 24)):
        width = draw.randint(2, 512)
        parts.append(
            f"\n\nclass Table{index}:\n"
            f'    """Rows of {width} numbers, read from a file and kept in order."""\n\n'
            f"    def __init__(self, path: str, width: int = {width}) -> None:\n"
            "        self.path = os.path.join(path, 'table.json')\n"
            "        self.rows = [[0.0] * width for _ in range(width)]\n\n"
            "    def scaled(self, factor: float) -> list[list[float]]:\n"
            "        # The rows stay as they are; the caller gets a copy.\n"
            f"        return [[value * factor + {draw.random():.3f} for value in row] for row in self.rows]\n\n"
            "    def save(self) -> None:\n"
            "        with open(self.path, 'w', encoding='utf-8') as stream:\n"
            "            json.dump({'rows': self.rows, 'mean': float(np.mean(self.rows))}, stream)\n"
        )
    return "".join(parts)


def make_tree(root: Path, files: int, fsdp: int) -> None:
    """``files`` files in ``root/tree``, ``fsdp`` of them from the FSDP1 projects.

    These are in ``root/fsdp`` again, and the others in ``root/plain``.
    """
    sources = [source for file in sorted(PROJECTS.rglob("*.py")) if b"FSDP" in (source := file.read_bytes())]
    if not sources:
        raise SystemExit(f"no FSDP1 sources under {PROJECTS}")
    (root / "fsdp").mkdir()
    for calls in WRAPS:
        (root / f"wraps_{calls}.py").write_text(wrapping_source(calls))
    for number in range(files):
        directory = root / "tree" / f"package_{number // 50:03}"
        plain = root / "plain" / directory.name
        for place in (directory, plain):
            place.mkdir(parents=True, exist_ok=True)
        if number < fsdp:
            source = sources[number % len(sources)]
            (root / "fsdp" / f"train_{number:03}.py").write_bytes(source)
        else:
            source = plain_source(number).encode()
            (plain / f"module_{number:05}.py").write_bytes(source)
        # Spread evenly, as training scripts are.
        (directory / f"module_{number * 7919 % files:05}.py").write_bytes(source)


def wrapping_source(calls: int) -> str:
    """A file that wraps ``calls`` models at its top level."""
    head = "import torch\nfrom torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy\n\n"
    call = "model_{} = FSDP(torch.nn.Linear(4, {}), sharding_strategy=ShardingStrategy.FULL_SHARD)\n"
    return head + "".join(call.format(number, number % 7 + 1) for number in range(calls))


def read_all(root: Path) -> int:
    """Walk and read everything; the number of bytes."""
    return sum(len(Path(place, name).read_bytes()) for place, _, names in os.walk(root) for name in names)


def in_process(work: Callable[[], object]) -> float:
    """CPU seconds of ``work`` in this process."""
    start = time.process_time()
    work()
    return time.process_time() - start


def in_child(arguments: list[str], cwd: Path, allowed: tuple[int, ...], checkout: Path | None = None) -> Usage:
    """What ``python arguments`` used. Fails if it ended with a code that is not ``allowed``.

    ``checkout`` is where the command is imported from; None takes what is installed.
    """
    # Compiling all modules anew at each start is no part of a rewrite.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    if checkout is not None:
        environment["PYTHONPATH"] = os.pathsep.join(str(checkout / part) for part in (".", "rules", "shim"))
    start = time.perf_counter()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=cwd, env=environment, stdout=subprocess.DEVNULL, stderr=errors
        )
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in allowed:
            errors.seek(0)
            tail = errors.read()[-2000:].decode(errors="replace")
            raise SystemExit(f"{' '.join(arguments[:4])} ended with {process.returncode}:\n{tail}")
    peak = usage.ru_maxrss / (MIB if sys.platform == "darwin" else 1024)
    return Usage(usage.ru_utime + usage.ru_stime, wall, peak)


def parse_all(directory: Path) -> None:
    """Parse every file with libcst and keep nothing."""
    import libcst

    for file in directory.iterdir():
        libcst.parse_module(file.read_bytes())


def measure(root: Path, files: int, fsdp: int, repeat: int, checkout: Path | None) -> dict[str, object]:
    """All measurements, as described above."""
    tree, candidates = root / "tree", root / "fsdp"
    parse_all(candidates)
    command = ["-m", "fsdp_migrate"]
    floor, parse = [], []
    start, library, rewrite, check, peer, before = [], [], [], [], [], []
    wraps: dict[str, list[Usage]] = defaultdict(list)
    for _ in range(repeat):
        floor.append(in_process(lambda: read_all(tree)))
        parse.append(in_process(lambda: parse_all(candidates)))
        start.append(in_child([*command, "--version"], root, (0,)))
        library.append(in_child(["-c", "import libcst"], root, (0,)))
        rewrite.append(in_child([*command, "rewrite", "--diff", "--jobs", "1", "tree"], root, (0, 1)))
        check.append(in_child([*command, "check", "--no-cache", "--jobs", "1", "plain"], root, (0,)))
        if checkout is not None:
            before.append(in_child([*command, "rewrite", "--diff", "--jobs", "1", "tree"], root, (0, 1), checkout))
        for calls in WRAPS:
            name = f"wraps_{calls}"
            one = [*command, "rewrite", "--diff", "--jobs", "1", f"{name}.py"]
            wraps[name].append(in_child(one, root, (0, 1)))
            if checkout is not None and calls == WRAPS[0]:
                wraps[f"{name}_before"].append(in_child(one, root, (0, 1), checkout))
        peer.append(in_child([*RENAME, "fsdp"], root, (0,)))
    floor_s, parse_s = min(floor), min(parse)
    start_s, library_s, rewrite_s, check_s, peer_s = (
        min(usage.cpu_s for usage in found) for found in (start, library, rewrite, check, peer)
    )
    earlier = {"rewrite_before": round(min(usage.cpu_s for usage in before), 4)} if before else {}
    return {
        **conditions("libcst"),
        "files": files,
        "fsdp_files": fsdp,
        "tree_mib": round(read_all(tree) / MIB, 2),
        "fsdp_mib": round(read_all(candidates) / MIB, 3),
        "cpu_s": {
            "floor": round(floor_s, 4),
            "parse": round(parse_s, 4),
            "start": round(start_s, 4),
            "library": round(library_s, 4),
            "rewrite": round(rewrite_s, 4),
            "check": round(check_s, 4),
            "peer": round(peer_s, 4),
            **{name: round(min(usage.cpu_s for usage in found), 4) for name, found in wraps.items()},
            **earlier,
        },
        "wall_s": {
            "rewrite": round(min(usage.wall_s for usage in rewrite), 4),
            "peer": round(min(usage.wall_s for usage in peer), 4),
        },
        "ratios": {
            "rewrite_to_floor": round(rewrite_s / floor_s, 2),
            "rewrite_to_parse_of_fsdp_files": round(rewrite_s / parse_s, 2),
            "rewrite_less_start_to_parse": round((rewrite_s - start_s) / parse_s, 2),
            "rewrite_less_start_and_library_to_parse": round((rewrite_s - start_s - library_s) / parse_s, 2),
            "check_to_floor": round(check_s / floor_s, 2),
            "rewrite_to_peer": round(rewrite_s / peer_s, 2),
        },
        "peak_mib": {
            "rewrite": round(max(usage.peak_mib for usage in rewrite), 1),
            "peer": round(max(usage.peak_mib for usage in peer), 1),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5000, help="files in the tree")
    parser.add_argument("--fsdp", type=int, default=40, help="how many of them use FSDP1")
    parser.add_argument("--repeat", type=int, default=3, help="the best of this many repetitions counts")
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    parser.add_argument("--checkout", type=Path, help="a checkout of another commit, whose rewrite is measured too")
    options = parser.parse_args()
    if not 0 < options.fsdp <= options.files:
        parser.error("--fsdp must be from 1 to --files")
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        make_tree(root, options.files, options.fsdp)
        text = json.dumps(measure(root, options.files, options.fsdp, options.repeat, options.checkout), indent=2) + "\n"
    if options.output:
        options.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
