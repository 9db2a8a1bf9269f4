"""Builds wheel and sdist of both distributions, and checks what an index would refuse in them.

    python scripts/distributions.py dist

Needs build, twine and what the two builds require, which the extra [dev] brings; nothing is fetched.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Each with a folder of its own, since a publisher to an index uploads one distribution.
SOURCES = {"fsdp-migrate": ROOT, "fsdp-compat": ROOT / "shim"}


def main() -> int:
    """Build into the folder that is given; the exit code."""
    if len(sys.argv) != 2:
        print("usage: python scripts/distributions.py FOLDER", file=sys.stderr)
        return 2
    out = Path(sys.argv[1]).resolve()
    for name, source in SOURCES.items():
        wanted = ("--no-isolation", "--sdist", "--wheel", "--outdir", str(out / name), str(source))
        subprocess.run([sys.executable, "-m", "build", *wanted], check=True)
    built = sorted(str(file) for name in SOURCES for file in (out / name).iterdir())
    return subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *built], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
