"""How long a check takes: of a tree that was not seen before, and again when nothing in it has changed.

    python benchmarks/check_speed.py [--files 370] [--fsdp 15] [--repeat 5] [--checkout /another/commit]

Makes a tree of Python files in a temporary directory, of which a few train with FSDP1, commits it to git, and measures
``fsdp-migrate check --jobs 1`` in CPU seconds (user and system, all child processes included) and by the clock:

- ``without``: with ``--no-cache``;
- ``first``: with a cache that is empty;
- ``again``: with the cache of the run before, nothing having changed;
- ``one_changed``: the same after an edit of a file that has nothing to do with FSDP;
- ``before``: of the commit in ``--checkout``, which may know no cache, in turns with the others.

Prints JSON with the best of all repetitions. The four outputs must be the same, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.conditions import conditions
from benchmarks.rewrite_speed import Usage, in_child, make_tree

CHECK = ("-m", "fsdp_migrate", "check", "--jobs", "1")


@contextmanager
def cache_folder(folder: Path) -> Iterator[None]:
    """Let the command keep its cache in ``folder``."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        del os.environ["XDG_CACHE_HOME"]
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before


def commit(tree: Path) -> None:
    """Make ``tree`` a repository with all of its files."""
    for words in (["init", "--quiet"], ["add", "--all"]):
        subprocess.run(["git", *words], cwd=tree, check=True)


def measure(root: Path, repeat: int, checkout: Path | None) -> dict[str, list[Usage]]:
    """What each run used."""
    found: dict[str, list[Usage]] = defaultdict(list)
    outputs: set[bytes] = set()
    edited = next(path for path in sorted((root / "tree").rglob("*.py")) if b"FSDP" not in path.read_bytes())

    def check(name: str, *options: str, code: Path | None = None) -> None:
        output = root / "answer.txt"
        arguments = [*CHECK, *options, "--output", str(output), "tree"]
        found[name].append(in_child(arguments, root, (0, 1), code))
        if code is None:
            outputs.add(output.read_bytes())

    for number in range(repeat):
        with cache_folder(root / f"cache_{number}"):
            check("without", "--no-cache")
            check("first")
            check("again")
            edited.write_bytes(edited.read_bytes() + b"# edited\n")
            check("one_changed")
            if checkout is not None:
                check("before", code=checkout)
    if len(outputs) != 1:
        raise SystemExit("the outputs differ")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=370, help="files in the tree")
    parser.add_argument("--fsdp", type=int, default=15, help="how many of them use FSDP1")
    parser.add_argument("--repeat", type=int, default=5, help="the best of this many repetitions counts")
    parser.add_argument("--output", type=Path, help="write the JSON here too")
    parser.add_argument("--checkout", type=Path, help="a checkout of another commit, which is measured too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        make_tree(root, options.files, options.fsdp)
        commit(root / "tree")
        found = measure(root, options.repeat, options.checkout)
    content = {
        **conditions("libcst"),
        "files": options.files,
        "fsdp_files": options.fsdp,
        "cpu_s": {name: round(min(one.cpu_s for one in all_of_it), 3) for name, all_of_it in found.items()},
        "wall_s": {name: round(min(one.wall_s for one in all_of_it), 3) for name, all_of_it in found.items()},
    }
    text = json.dumps(content, indent=2) + "\n"
    if options.output:
        options.output.write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
