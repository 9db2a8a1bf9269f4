"""Run with other hash seeds: what `checkpoint inspect` prints and `checkpoint convert` writes, as digests.

python -m tests.fuzz.hashed FIRST COUNT
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import random
import sys
import tempfile
import warnings
from pathlib import Path

from fsdp_migrate.checkpoints.convert.plan import Target
from fsdp_migrate.cli import main
from tests.fuzz.checkpoints import EXPECTED, REFUSED, broken, structured, unpacked


def digests(first: int, count: int) -> list[str]:
    """One for each checkpoint and each command, in order."""
    found = []
    for number in range(first, first + count):
        make = structured if number % 3 else broken
        with tempfile.TemporaryDirectory() as name:
            os.chdir(name)
            Path("source").mkdir()
            for path, content in unpacked(make(random.Random(f"hashed {number}"))).items():
                if path not in (EXPECTED, REFUSED):
                    Path("source", path).write_bytes(content)
            for arguments in (
                ["inspect", "--format", "json", "source"],
                ["inspect", "source"],
                *(["convert", "source", f"target_{to.value}", "--to", to.value] for to in Target),
            ):
                found.append(f"{number} {arguments} {_run(arguments)}")
    return found


def _run(arguments: list[str]) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as error:
        code = main(["checkpoint", *arguments])
    digest = hashlib.sha256(f"{code} {out.getvalue()} {error.getvalue()}".encode("utf-8", "replace"))
    for path in sorted(Path().glob("target_*/**/*")) + sorted(Path().glob("target_*")):
        digest.update(os.fsencode(path) + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    print("\n".join(digests(int(sys.argv[1]), int(sys.argv[2]))))
