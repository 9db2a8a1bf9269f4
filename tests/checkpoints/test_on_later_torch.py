"""``checkpoint inspect`` and ``convert`` on a torch that has lost FSDP1 and ShardedTensor: they do all the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.test_kinds import TWO
from tests.pool import ROOT

#: Runs the commands of its first argument, in a process without FSDP1 if there is a second: [exit code, stdout].
_PROGRAM = """
import contextlib, io, json, sys
if sys.argv[2:]:
    from tests.without_fsdp1 import block
    block()
    for lost in ("torch.distributed.fsdp.FullyShardedDataParallel", "torch.distributed._shard.sharded_tensor.api"):
        with contextlib.suppress(ImportError):
            __import__(lost, fromlist=["x"])
            raise AssertionError(f"{lost} is there")
from fsdp_migrate.cli import main
done = []
for command in json.loads(sys.argv[1]):
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        done.append([main(command), out.getvalue()])
print(json.dumps(done))
"""


def run(commands: list[list[str]], *, blocked: bool) -> list[tuple[int, str]]:
    """Exit code and output of each command."""
    arguments = [sys.executable, "-W", "ignore", "-c", _PROGRAM, json.dumps(commands), *["without"] * blocked]
    done = subprocess.run(arguments, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return [(code, text) for code, text in json.loads(done.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def commands(two_ranks: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[list[str]]]:
    """Each kind of checkpoint inspected, and converted to each format; into folders of the same length of name."""
    folders = {side: tmp_path_factory.mktemp(side) for side in ("before", "after0")}
    result: dict[str, list[list[str]]] = {"inspect": [["checkpoint", "inspect", str(two_ranks / name)] for name in TWO]}
    for side, folder in folders.items():
        result[side] = [
            ["checkpoint", "convert", str(two_ranks / name), str(folder / f"{number}-{to}"), "--to", to]
            for number, name in enumerate(TWO)
            for to in ("dcp", "safetensors", "full")
        ]
    return result


def test_inspect_says_the_same(commands: dict[str, list[list[str]]]) -> None:
    with_it, without = (run(commands["inspect"], blocked=blocked) for blocked in (False, True))
    assert with_it == without
    assert {code for code, _ in with_it} == {0, 1}


def test_convert_writes_the_same(commands: dict[str, list[list[str]]]) -> None:
    with_it, without = run(commands["before"], blocked=False), run(commands["after0"], blocked=True)
    targets = zip(commands["before"], commands["after0"], strict=True)
    for (before, after), (code, text), done in zip(targets, with_it, without, strict=True):
        assert done == (code, text.replace(before[3], after[3])), after
        files, others = (
            [file for file in Path(command[3]).rglob("*") if file.is_file()] for command in (before, after)
        )
        assert sorted(file.name for file in files) == sorted(file.name for file in others)
        # The metadata of torch.distributed.checkpoint names each save by a random id.
        contents = [sorted(file.read_bytes() for file in each if file.name != ".metadata") for each in (files, others)]
        assert contents[0] == contents[1], after
    assert sum(code == 0 for code, _ in without) > len(TWO)
