"""Writes checkpoints with torch 2.2 and 2.4, each in an environment of its own under .matrix/, and tests what they are.

The project itself needs a newer torch; what older ones have left on disk it reads, and converts, all the same. Exits 1
if a test fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / ".matrix"
#: The last releases of the two that changed what is written: how .metadata spells tensors and keys of param groups.
VERSIONS = ("2.2.2", "2.4.1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Write and test; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "versions", nargs="*", metavar="X.Y.Z", default=VERSIONS, help="releases of torch (%(default)s)"
    )
    failed = [version for version in parser.parse_args(arguments).versions if not passes(version)]
    if failed:
        print(f"failed: torch {', '.join(failed)}")
    return 1 if failed else 0


def passes(version: str) -> bool:
    """Whether what torch ``version`` writes is read and converted as it should be; pytest says why not."""
    python = environment(version)
    folder = ENVIRONMENTS / f"{version}-written"
    shutil.rmtree(folder, ignore_errors=True)
    generator = ROOT / "fixtures" / "checkpoints" / "written_by.py"
    subprocess.run([python, "-W", "ignore", generator, folder], check=True)
    print(f"torch {version}: written to {folder}", flush=True)
    checks = ROOT / "tests" / "checkpoints" / "by_old_torch.py"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", checks]
    return not subprocess.run(command, cwd=ROOT, env={**os.environ, "FSDP_MIGRATE_WRITTEN": str(folder)}).returncode


def environment(version: str) -> Path:
    """The interpreter of an environment with torch ``version`` and nothing of the project, installed if need be."""
    directory = ENVIRONMENTS / version
    python = directory / "bin" / "python"
    stamp = directory / ".installed"
    if not stamp.exists():
        venv.create(directory, with_pip=True, symlinks=True)
        # Torch of that age is built for the numpy of its time.
        subprocess.run([python, "-m", "pip", "install", "--quiet", f"torch=={version}", "numpy<2"], check=True)
        stamp.touch()
    return python


if __name__ == "__main__":
    sys.exit(main())
