"""What a conversion of a checkpoint takes: memory, CPU and wall time, against torch's own two converters.

    python benchmarks/checkpoint_convert.py [--tensors 64] [--mib 64] [--turns N] [--output checkpoint_convert.json]

Generates a checkpoint of float32 tensors in a scratch directory (``--scratch``), as a folder of
torch.distributed.checkpoint, as files of two ranks with DTensors, and as one file of ``torch.save``; then another one
with a single tensor of 1 GiB among small ones. Each conversion runs in a process of its own:

- ``anon_mib``: the peak of anonymous memory (``RssAnon``, sampled), less that of a process that has only imported the
  same modules. Pages of mapped files are not in it, as the system drops them when it needs room.
- ``max_rss_mib``: the peak resident set, mapped files and code in it, nothing taken off.
- ``cpu_s`` and ``wall_s``: of the process from start to end; ``import_cpu_s``: that of the imports alone.
- ``seconds``: the wall time of each part: checking the CRC-32 of the source, writing, and comparing source and target,
  with the SHA-256 of the manifest; ``comparing``: the share of the last; ``read_again``: that over those before.
- ``memory_factor``: ``anon_mib`` over the largest tensor.
- ``peer``: ``dcp_to_torch_save`` and ``torch_save_to_dcp`` of torch.distributed.checkpoint.format_utils, and
  ``save_file`` of safetensors, at the same task in the same way, which read nothing again; ``ratio`` is ours to theirs.

With ``--turns N`` one file is converted to safetensors N times, in turns with two copies of its tensors: ``torch.load``
and ``save_file``, and the same waiting until the disk has it, as a conversion does.

``holds``: the peak is within two of the largest tensors and 200 MiB. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.conditions import conditions, write

MIB = 2**20
RANKS = 2
ALLOWED_MIB = 200

#: Prints its anonymous memory; what it imports is what the conversion does.
_IMPORTS = "import {modules}; print(open('/proc/self/status').read().partition('RssAnon:')[2].split()[0])"

_OURS = """
import json, sys, time
from pathlib import Path
from fsdp_migrate.checkpoints.convert.convert import convert
from fsdp_migrate.checkpoints.convert.plan import Target, Wanted
source, target, to = sys.argv[1:]
begun = {}
def progress(label, nbytes):
    begun[label] = time.perf_counter()
    return lambda count: None
start = time.perf_counter()
convert(Path(source), Path(target), Wanted(Target(to)), progress)
ends = [*list(begun.values())[1:], time.perf_counter()]
print(json.dumps({name: end - begin for (name, begin), end in zip(begun.items(), ends)}))
"""

_PEERS = {
    ("dcp", "full"): "dcp_to_torch_save",
    ("full", "dcp"): "torch_save_to_dcp",
    ("full", "safetensors"): "save_file",
}
_COPY = """
import json, os, sys, time, torch
from pathlib import Path
from safetensors.torch import save_file
start = time.perf_counter()
Path(sys.argv[2]).mkdir()
path = sys.argv[2] + "/model.safetensors"
save_file(torch.load(sys.argv[1], mmap=True)["model"], path)
if len(sys.argv) > 3:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
print(json.dumps({"copying": time.perf_counter() - start}))
"""
_PEER = """
import sys, warnings
warnings.simplefilter("ignore")
from torch.distributed.checkpoint.format_utils import {name}
{name}(sys.argv[1], sys.argv[2])
print("null")
"""
_CLOCKS = ("wall", "cpu", "work")
_WRITERS = {"dcp": "to_dcp", "full": "to_full", "safetensors": "to_safetensors"}


@dataclass(frozen=True)
class Usage:
    """What one process used."""

    anon_mib: float
    max_rss_mib: float
    cpu_s: float
    wall_s: float


def tensors(count: int, mib: int, largest_mib: int) -> dict[str, Any]:
    """``count`` tensors of ``mib`` MiB, and one of ``largest_mib`` if that is more, of random numbers."""
    import torch

    made = torch.Generator().manual_seed(0)
    sizes = [mib] * count + [largest_mib] * (largest_mib > mib)
    return {
        f"layers.{number}.weight": torch.rand(size * 256, 1024, generator=made) for number, size in enumerate(sizes)
    }


def generate(root: Path, count: int, mib: int, largest_mib: int) -> None:
    """The same checkpoint as ``root/dcp``, ``root/ranks`` and ``root/full``."""
    import torch
    import torch.distributed.checkpoint as dcp

    model = tensors(count, mib, largest_mib)
    torch.save({"model": model}, root / "full")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.save({"model": model}, checkpoint_id=root / "dcp", no_dist=True)
    (root / "ranks").mkdir()
    for rank in range(RANKS):
        _save_rank(root / "ranks" / f"rank_{rank}.pt", rank, model)


def _save_rank(path: Path, rank: int, model: dict[str, Any]) -> None:
    """What this rank of ``RANKS`` saves of the model under FSDP2, without the others being there."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=rank, world_size=RANKS, store=FakeStore())
    mesh = init_device_mesh("cpu", (RANKS,))
    sharded = {
        name: DTensor.from_local(
            value.chunk(RANKS)[rank].clone(), mesh, [Shard(0)], shape=value.shape, stride=value.stride()
        )
        for name, value in model.items()
    }
    torch.save({"model": sharded}, path)
    dist.destroy_process_group()


def measured(code: str, *arguments: str) -> tuple[Usage, str]:
    """What ``python -c code`` used, and what it printed."""
    start = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, env=environment
    )
    status, peak, ended = Path(f"/proc/{process.pid}/status"), 0, 0
    while not ended:
        told = status.read_text().partition("RssAnon:")[2].split()
        peak = max(peak, int(told[0]) if told else 0)
        time.sleep(0.002)
        ended, code_of_end, used = os.wait4(process.pid, os.WNOHANG)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(code_of_end)
    if process.returncode or process.stdout is None:
        raise SystemExit(f"{arguments} ended with {process.returncode}")
    usage = Usage(peak / 1024, used.ru_maxrss / 1024, used.ru_utime + used.ru_stime, wall)
    return usage, process.stdout.read()


def measure(root: Path, source: str, to: str, largest_mib: int) -> dict[str, object]:
    """One conversion, with what the imports alone took taken off its memory, and its peer where it has one."""
    modules = f"fsdp_migrate.checkpoints.convert.convert, fsdp_migrate.checkpoints.convert.writers.{_WRITERS[to]}"
    idle, printed = measured(_IMPORTS.format(modules=modules))
    used, took = measured(_OURS, str(root / source), str(root / "new"), to)
    seconds = json.loads(took)
    again = seconds["comparing"]
    _remove(root / "new")
    anon = used.anon_mib - int(printed) / 1024
    allowed = 2 * largest_mib + ALLOWED_MIB
    found: dict[str, object] = {
        **_rounded(used),
        "anon_mib": round(anon, 1),
        "import_cpu_s": round(idle.cpu_s, 2),
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "comparing": round(again / sum(seconds.values()), 2),
        "read_again": round(again / (sum(seconds.values()) - again), 2),
        "memory_factor": round(anon / largest_mib, 2),
        "allowed_mib": allowed,
        "holds": anon <= allowed,
    }
    if (source, to) in _PEERS:
        name = _PEERS[source, to]
        modules = "safetensors.torch" if to == "safetensors" else "torch.distributed.checkpoint.format_utils"
        idle, printed = measured(_IMPORTS.format(modules=modules))
        code = _COPY if to == "safetensors" else _PEER.format(name=name)
        peer, _ = measured(code, str(root / source), str(root / "new"))
        _remove(root / "new")
        peer_anon = peer.anon_mib - int(printed) / 1024
        found["peer"] = {"name": name, **_rounded(peer), "anon_mib": round(peer_anon, 1)}
        found["ratio"] = {
            "anon": round(anon / peer_anon, 3) if peer_anon > 1 else None,
            "cpu": round(used.cpu_s / peer.cpu_s, 2),
            "wall": round(used.wall_s / peer.wall_s, 2),
        }
    return found


def turns(root: Path, rounds: int) -> dict[str, object]:
    """Conversions of ``root/full`` to safetensors and copies of it by ``save_file``, which take turns.

    Each ratio is the time of the copy over ours, so that 1 is as fast: of the processes by the clock (``wall``) and on
    the processors (``cpu``), and of the work in them without the start and the imports (``work``).
    """
    forms = {"ours": (_OURS, ("safetensors",)), "save_file": (_COPY, ()), "save_file, on disk": (_COPY, ("sync",))}
    taken: dict[str, list[tuple[float, float, float]]] = {form: [] for form in forms}
    for _ in range(rounds):
        for form, (code, more) in forms.items():
            os.sync()
            used, took = measured(code, str(root / "full"), str(root / "new"), *more)
            _remove(root / "new")
            taken[form].append((used.wall_s, used.cpu_s, sum(json.loads(took).values())))
    ours = taken.pop("ours")
    found: dict[str, object] = {"rounds": rounds, "ours": _medians(ours)}
    for form, theirs in taken.items():
        ratios = [
            tuple(their / our for their, our in zip(one, other, strict=True))
            for one, other in zip(theirs, ours, strict=True)
        ]
        lowest = {name: round(min(values), 2) for name, values in zip(_CLOCKS, zip(*ratios, strict=True), strict=True)}
        found[form] = {**_medians(theirs), "speed_of_ours": _medians(ratios), "lowest": lowest}
    return found


def _medians(turns: Sequence[tuple[float, ...]]) -> dict[str, float]:
    return {
        name: round(statistics.median(values), 2)
        for name, values in zip(_CLOCKS, zip(*turns, strict=True), strict=True)
    }


def _rounded(usage: Usage) -> dict[str, float]:
    return {name: round(value, 2 if name.endswith("_s") else 1) for name, value in asdict(usage).items()}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def measure_all(
    scratch: Path, count: int, mib: int, largest_mib: int, only: list[str], rounds: int = 0
) -> dict[str, object]:
    """All conversions of one checkpoint, by source and target, or ``rounds`` of turns with copies."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        root = Path(folder)
        # In a process of its own: ru_maxrss of a child begins with what this process holds when it forks.
        generating = multiprocessing.get_context("spawn").Process(target=generate, args=(root, count, mib, largest_mib))
        generating.start()
        generating.join()
        if generating.exitcode:
            raise SystemExit("no checkpoint could be generated")
        if rounds:
            return {"gib": round(count * mib / 1024, 2), "turns": turns(root, rounds)}
        cases = [(source, to) for source in ("dcp", "ranks") for to in _WRITERS]
        cases += [("full", "dcp"), ("full", "safetensors")]
        found = {
            f"{source} to {to}": measure(root, source, to, max(mib, largest_mib))
            for source, to in cases
            if not only or f"{source} to {to}" in only
        }
    return {"gib": round((count * mib + (largest_mib if largest_mib > mib else 0)) / 1024, 2), "conversions": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=64)
    parser.add_argument("--mib", type=int, default=64, help="of each tensor")
    parser.add_argument("--largest-mib", type=int, default=1024, help="of the one tensor of the second checkpoint")
    parser.add_argument("--scratch", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--only", nargs="*", default=[], metavar="CASE", help="for example 'full to safetensors'")
    parser.add_argument("--turns", type=int, default=0, metavar="N", help="only N turns of safetensors and copies")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    # Three forms of the source, and what is being written.
    needed = 4 * max(options.tensors * options.mib, options.largest_mib + 512) * MIB * 11 // 10
    if shutil.disk_usage(options.scratch).free < needed:
        raise SystemExit(f"{options.scratch}: it takes {needed:,} bytes there")
    load = os.getloadavg()[0]
    measurements = {
        "tensors_of_one_size": measure_all(
            options.scratch, options.tensors, options.mib, 0, options.only, options.turns
        ),
    }
    if not options.turns:
        large = options.largest_mib
        measurements["one_large_tensor"] = measure_all(options.scratch, 8, min(options.mib, 64), large, options.only)
    loads = [round(load, 1), round(os.getloadavg()[0], 1)]
    result = {**conditions("torch"), "load_average": loads, **measurements}
    write(result, options.output)


if __name__ == "__main__":
    main()
