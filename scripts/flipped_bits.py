"""Turns single bits of tensors in checkpoints over, and counts those that are not noticed.

Exits 1 unless all are noticed, by the digests and by ``convert``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "rules"), str(ROOT / "shim")]

from fsdp_migrate.checkpoints.convert.plan import Target  # noqa: E402
from fsdp_migrate.checkpoints.convert.state import CannotConvert  # noqa: E402
from tests.checkpoints.convert.converting import converted  # noqa: E402
from tests.checkpoints.test_digests import damage, flipped, places  # noqa: E402
from tests.checkpoints.written import write  # noqa: E402
from tests.pool import Pool  # noqa: E402

CHECKPOINTS = ("full_orig.pt", "full_flat.pt", "sharded_orig", "sharded_flat", "local_orig", "raw_orig")


def main() -> int:
    """Flip as many bits as asked for, over all checkpoints, and print what was noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    drawn = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "two"
        root.mkdir()
        with Pool(2) as pool:
            from fixtures.checkpoints import kinds

            for original in (True, False):
                pool.run(write, 2, root, kinds.write_fsdp1, original)
        missed = [
            path for number in range(arguments.count) if (path := _missed(root, CHECKPOINTS[number % 6], drawn, number))
        ]
    print(f"{arguments.count - len(missed)} of {arguments.count} single flipped bits noticed")
    return int(bool(missed))


def _missed(root: Path, name: str, drawn: random.Random, number: int) -> str:
    """Where a flipped bit was not noticed, "" where it was."""
    path = root / name
    file = path if path.is_file() else drawn.choice(sorted(path.glob("*.pt")))
    at, bit = drawn.choice(places(file)), drawn.randrange(8)
    flipped(file, at, bit)
    noticed = len(damage(path)) == 1
    if name.startswith(("full", "sharded")):
        target = root.parent / f"converted-{number}"
        try:
            converted(path, target, Target.DCP)
        except CannotConvert as error:
            noticed = noticed and "CRC-32" in str(error)
        else:
            noticed = False
    flipped(file, at, bit)
    return "" if noticed else f"{file}: bit {bit} of byte {at}"


if __name__ == "__main__":
    sys.exit(main())
