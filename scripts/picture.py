"""Draws docs/verify.svg, the picture of the README: the terminal at the end of a comparison of the project minigpt.

python scripts/picture.py
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from fsdp_migrate.verify.comparison import verdict_of
from fsdp_migrate.verify.recording.read import read
from fsdp_migrate.verify.report import verdict_terminal
from fsdp_migrate.verify.verdict import Verdict
from scripts.demo import PROCESSES, PROJECT, ROOT, rewrite

PICTURE = ROOT / "docs" / "verify.svg"
STEPS = 3
#: Rich's own, without the fonts that it would load from the network.
_FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
_TEXT = re.compile(r"<text [^>]*>(.*?)</text>", re.DOTALL)
_NORMS = re.compile(r"within 1e-5|(?<=gradient norm )[\d ]+|,? \d+ gradient norms")
_COST = re.compile(r"\d+(\.\d+)? [KMG]iB|\b\d+\.\d{3}\b")


def picture(verdict: Verdict) -> str:
    """An SVG of the terminal that shows this verdict; it loads nothing."""
    console = Console(record=True, file=io.StringIO(), force_terminal=True, color_system="truecolor", width=84)
    started = f"$ fsdp-migrate verify --deep --steps {STEPS} -- torchrun --nproc-per-node {PROCESSES} train.py"
    console.print(started, highlight=False)
    verdict_terminal.show(verdict, console)
    return console.export_svg(title="fsdp-migrate verify", code_format=_FORMAT, unique_id="verify")


def words(svg: str) -> list[str]:
    """What a picture says, without what a machine measures, seconds and bytes, and how it rounds gradient norms.

    Squares are added up in an order that depends on the width of the processor's vectors.
    """
    shown = " ".join(_TEXT.findall(svg)).replace("&#160;", " ")
    said = " ".join(re.sub(r"[─━┃│┏┓┗┛┡┩├┤└┘┴┬╇┳╋┼]+", " ", _COST.sub("N", shown)).split())
    return _NORMS.sub("", said).replace(" ,", ",").split()


def compared(directory: Path) -> Verdict:
    """Run the command on the project, before and after the rewrite, and read what it recorded."""
    for name in ("before", "after"):
        (directory / name).mkdir()
        (directory / name / "train.py").write_bytes((PROJECT / "train.py").read_bytes())
    rewrite(directory / "after")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(PROCESSES)]
    training = [*torchrun, "train.py", "--out", "out", "--steps", str(STEPS)]
    options = ["--before-dir", "before", "--after-dir", "after", "--no-repeat", "--deep", "--keep", "kept"]
    command = [sys.executable, "-m", "fsdp_migrate", "verify", *options, "--steps", str(STEPS), "--", *training]
    subprocess.run(command, cwd=directory, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=True)
    return verdict_of(read(directory / "kept" / "before"), read(directory / "kept" / "after"))


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        PICTURE.write_text(picture(compared(Path(directory))), encoding="utf-8")


if __name__ == "__main__":
    main()
