"""How the work on a file grows with its length, counted in calls of functions, which no other load moves."""

from __future__ import annotations

import gc
import random
import re
import sys
import tracemalloc
from collections.abc import Callable
from types import FrameType

from tests.fuzz import programs
from tests.fuzz.source_properties import compiles, rewritten

HEAD = """import torch
from torch.distributed.fsdp import *
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
"""
#: How often a part of a program is repeated, once, twice and three times over.
REPEATED = 12
#: How much more a third part of a file may cost than the second did. With costs of a n + b n², equal parts cost
#: a + b, a + 3 b and a + 5 b, so that what is purely quadratic gives 5 / 3, and what is linear 1.
MOST = 1.12
#: Bytes of memory for each byte of a file, at most, beyond what any file takes.
BYTES_PER_BYTE = 1000

#: The names that each part has for itself.
_OWN = re.compile(r"(?<![.\w])(run|model|net|module|optimizers?|opt|optim|ema|state|norm|policy|kwargs|unit|make)\b")


def calls(work: Callable[[], object]) -> int:
    """How many functions ``work`` calls, those written in C included."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()
    sys.setprofile(counted)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def peak(work: Callable[[], object]) -> int:
    """The most bytes that ``work`` holds at once."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def part(rng: random.Random) -> str:
    """Statements of a generated program, on their own or in a function; ``@I`` is where a number makes names differ."""
    writer = programs.Writer(rng)
    body = "\n".join(writer.statement() for _ in range(rng.randrange(1, 4)))
    if rng.random() < 0.5:
        body = f"def run(args, model, net, optimizer, batches):\n{writer.inner(body)}"
    # Parts that have nothing to do with each other: every wrap of one model may concern every optimizer of it.
    return _OWN.sub(r"\g<0>_@I", body)


def repeated(text: str, times: int) -> bytes:
    """A program of ``times`` times ``text``."""
    return (HEAD + "\n".join(text.replace("@I", str(number)) for number in range(times)) + "\n").encode()


def hold(data: bytes) -> None:
    """The work on a file whose parts are all ``data`` grows as its length does; an AssertionError says where not."""
    text = data.decode()
    sources = [repeated(text, REPEATED * times) for times in (1, 2, 3)]
    if not compiles(sources[0]):
        return
    rewritten(sources[0])
    first, second, third = (calls(lambda source=source: rewritten(source)) for source in sources)
    assert third - second <= MOST * (second - first), (
        f"{REPEATED} more parts cost {second - first} calls, and the next {third - second}:\n{text}"
    )
